// Tables of the scalar encodings, indexed by opcode number.
#pragma once
#include "machine.h"
extern opcode sop1_table[256], sop2_table[128], sopc_table[128], sopk_table[32], sopp_table[128];
