"""C++ kernels for x86-64."""
