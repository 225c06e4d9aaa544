"""A gfx1151 (RDNA 3.5) without the chip: its instructions executed on the CPU, under a HIP library of our own.

The C files are one shared library, `libamdhip64.so`. IREE's HIP driver loads it in place of AMD's, gives it the code
objects of a program compiled for gfx1151, and launches kernels, which run instruction by instruction.
Proven by that: results, memory accesses, races between waves, and what is executed, read and written. Not proven: time,
occupancy, the hardware's own rounding inside WMMA, dot products and transcendental units, and anything that needs
workgroups or streams at the same time.

In Python, with PYTHONPATH=tests: `simulator.start()` before any use of IREE's HIP driver, then run a program as on the
chip. `simulator.recording()` gives the account of launches; `simulator.using(wave_order=1, poison=0x5A)` chooses other
orders and other garbage (options.h lists them). For another process: IREE_HIP_DYLIB_PATH=file:<build.library()>.
`device.CodeObject` runs kernels of a code object without IREE, `kernel_machine.gfx1151` strixhlo's own.

Every launch stops at its first fault, with kernel, instruction, code offset, workgroup and wave: an access outside all
allocations, a misaligned one, LDS overrun, a race between waves or workgroups (in LDS; in global memory, a load or
another value stored after a store without a barrier between), an unknown instruction, an endless loop. Only reading
before another wave's store in global memory is not seen at once; other orders of waves show it.
"""
