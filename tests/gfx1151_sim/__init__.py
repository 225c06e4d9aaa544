"""A gfx1151 (RDNA 3.5) without the chip: its instructions executed on the CPU, under a HIP library of our own.

The C files are one shared library, `libamdhip64.so`. IREE's HIP driver loads it in place of AMD's, gives it the code
objects of a program compiled for gfx1151, and launches kernels, which run instruction by instruction.
Proven by that: results, memory accesses, races between waves, and what is executed, read and written. Not proven: time,
occupancy, the hardware's own rounding inside WMMA, dot products and transcendental units, and anything that needs
workgroups or streams at the same time.
"""
