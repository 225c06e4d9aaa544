// Rows of a weight of any format: see custom_kernels/ops/embedding.py.

// y float32 [K] = row n of a weight, times a factor.
template <class Weight>
static void embedding_row(const Weight& weight, int64_t n, int64_t K, float factor, float* y) {
  const int64_t runs = (K + RUN - 1) / RUN;
  const typename Weight::Row row = weight.row(n);
  for (int64_t first = 0; first < runs; first += W) {
    const int64_t here = min(runs - first, W);
    typename Weight::Groups groups;
    Weight::load_groups(row, first, here, groups);
    for (int64_t i = 0; i < here; i++) {
      const int64_t column = (first + i) * RUN, columns = min(K - column, RUN);
      F w[PER_RUN];
      Weight::load_run(row, first + i, groups, i, columns, w);
      for (int64_t v = 0; v < PER_RUN && v * W < columns; v++)
        store_part(y + column + v * W, w[v] * factor, min(columns - v * W, W));
    }
  }
}

static void embedding(const FusedWeight& w, int64_t n, int64_t K, float factor, float* y) {
  switch (w.format) {
#define EMBED_QUANTIZED(name, Fmt, KIND) \
  case FORMAT_##name:                    \
    return embedding_row(QuantizedWeight<Fmt>{w.parts, K}, n, K, factor, y);
#define EMBED_DENSE(name, Type) \
  case FORMAT_##name:           \
    return embedding_row(DenseWeight<Type>{reinterpret_cast<const Type::Element*>(w.parts.codes), K}, n, K, factor, y);
    FOR_EACH_FORMAT(EMBED_QUANTIZED)
    EMBED_DENSE(f32, Float32) EMBED_DENSE(f16, Float16) EMBED_DENSE(bf16, Bfloat16)
  }
}

// tokens int32 [T], a weight of N0 rows -> y float32 [T, K]; a workgroup a token.
KERNEL strixhlo_embedding(BYTES(tokens), WEIGHT_BUFFERS(0), RESULT(y), int64_t K, int64_t scale_bits, int64_t flags,
                          WEIGHT_SCALARS(0), int64_t wg) {
  const FusedWeight weight = WEIGHT(0);
  const int64_t token = reinterpret_cast<const int32_t*>(AT(tokens))[wg];
  embedding(weight, max(min(token, N0 - 1), 0), K, BITS_TO_FLOAT(scale_bits), TO_RESULT(y) + wg * K);
}
