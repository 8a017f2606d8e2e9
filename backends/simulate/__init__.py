"""Requests that come to an engine one after another, step by step: queues, batches, blocks, preemptions."""
