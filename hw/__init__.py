"""Devices, clusters, engines, calibrations and prices."""
