// Every CPU kernel with the matrix unit's instructions as loops: see custom_kernels/cpu/tiles.h.
#define STRIXHLO_EMULATED_TILES 1
#include "kernels.cpp"
