// Every CPU kernel in one object: IREE links one file into a program, and -march decides which variant it holds.
#include "argmax.cpp"
#include "attention.cpp"
#include "dense_matmul.cpp"
#include "kv_append.cpp"
#include "quantize_rows.cpp"
#include "quantized_matmul_f32.cpp"
#include "quantized_matmul_int8.cpp"
