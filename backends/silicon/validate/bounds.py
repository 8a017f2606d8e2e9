"""Why a lower bound can be above a measurement: rules, from the op's bytes and the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmir.hw import Device

from .pricing import Bound

Array = np.ndarray[Any, np.dtype[Any]]

RESIDENT = "operands fit in L2"
PARTLY = "an L2's worth of the operands was not read from memory"
MEMORY = "beats the memory bandwidth, or reads less than is counted"
COMPUTE = "beats the peak rate"
NETWORK = "beats the link"
MODEL = "faster than the roofline of what the table says ran"
# Rows under these rules say nothing of `ideal`: the table did less than it says, or not from memory.
EXCLUDED = (RESIDENT, PARTLY, MEMORY)


def explain(device: Device, measured: Array, least: Bound) -> list[str]:
    """The rule for each row, empty where no limit is above the measurement.

    A timing loop that repeats one call finds its operands in L2 if they fit. Of larger ones, as many bytes
    as L2 holds may be left from the call before. What is still faster beats the datasheet's bandwidth.
    """
    l2 = device.l2_bytes or 0
    found = np.full(len(measured), "", dtype=object)
    over = least.memory > measured
    found[over] = MEMORY
    found[over & ((least.moved - l2) / device.memory_Bps <= measured)] = PARTLY
    found[over & (least.moved <= l2)] = RESIDENT
    found[least.compute > measured] = COMPUTE
    found[least.network > measured] = NETWORK
    return list(found)
