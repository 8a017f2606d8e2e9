"""Predictions held against measurements: tables of kernels, of whole models, and chat logs."""
