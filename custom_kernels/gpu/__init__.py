"""Freestanding C++ kernels, one source for amdgcn and nvptx."""
