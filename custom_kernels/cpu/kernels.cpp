// Every CPU kernel in one object: IREE links one file into a program, and -march decides which variant it holds.
#include "argmax.cpp"
#include "attention.cpp"
#include "dense_matmul.cpp"
#include "fused_matmul.cpp"
#include "embedding.cpp"  // after fused_matmul.cpp, whose weights it reads
#include "moe_matmul.cpp"
#include "moe_matmul_int8.cpp"
#include "moe_few_rows.cpp"  // after fused_matmul.cpp
#include "moe_route.cpp"
#include "norm_rows.cpp"
#include "quantize_rows.cpp"
#include "quantized_matmul_f32.cpp"
#include "quantized_matmul_int8.cpp"
#include "rope_and_append.cpp"
