"""The allocator of glibc: keep freed memory for the next training step.

By default, malloc asks the system for every large block and returns it when it is freed. A training
step frees all its activations, so each step pays for their page faults again.
"""

import ctypes
import functools

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of <malloc.h>
_GROW = 64 << 20  # bytes by which the heap grows at least


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees and use it again.

    Returns:
        Whether the allocator could be told; it is glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    mallopt(_TOP_PAD, _GROW)
    return mallopt(_MMAP_MAX, 0) == mallopt(_TRIM_THRESHOLD, -1) == 1
