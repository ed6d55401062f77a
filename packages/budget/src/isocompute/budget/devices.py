"""The public address of ``planning.devices``: from FLOPs to device time, memory and money."""

from .planning.devices import (
    DEVICES,
    Device,
    Memory,
    Utilisation,
    device,
    device_time,
    memory,
    price,
    seconds,
)

__all__ = ["DEVICES", "Device", "Memory", "Utilisation", "device", "device_time", "memory", "price", "seconds"]
