"""A device whose memory is host memory that only the device may access: any other access ends the process."""

import contextlib
import ctypes
import mmap
import weakref

from ampi.device.backends import Processor
from ampi.memory.extents import array_at

LIBC = ctypes.CDLL(None, use_errno=True)


class Block:
    """Memory pages whose access can be revoked."""

    def __init__(self, nbytes):
        self.size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, self.size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def permit(self, how):
        assert LIBC.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), how) == 0


class Guarded(Processor):
    """The processor as a device, with memory that is accessible only while the device is working."""

    def __init__(self):
        self.blocks = weakref.WeakSet()
        self.depth = 0
        self.times = 0

    def empty(self, nbytes):
        block = Block(nbytes)
        block.memory[:] = b"\x7f" * block.size  # not zeros
        if not self.depth:
            block.permit(0)
        self.blocks.add(block)
        return block.address, block

    @contextlib.contextmanager
    def reach(self):
        self.times += 1
        if not self.depth:
            for block in list(self.blocks):
                block.permit(mmap.PROT_READ | mmap.PROT_WRITE)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                for block in list(self.blocks):
                    block.permit(0)

    def adopt(self, array):
        pass

    def adopted(self, array):
        if any(block.address <= array.ctypes.data < block.address + block.size for block in self.blocks):
            return array.ctypes.data, array
        address, block = self.empty(array.nbytes)
        made = array_at(address, array.shape, array.strides, array.dtype)
        made[...] = array
        return address, block
