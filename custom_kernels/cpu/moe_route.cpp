// Router logits -> experts and weights of each token, and the tokens sorted by expert: see ops/moe_route.py.
#include "export.h"
#include "moe_route.h"

constexpr int64_t MOE_TILE = 16;

// One workgroup. `bias` is read only where `biased`; columns: of logits, of which the first are the experts'.
KERNEL strixhlo_moe_route(BUFFER(const float, logits), BUFFER(const int32_t, positions), BUFFER(const float, bias),
                          BUFFER(int32_t, ids), BUFFER(float, weights), BUFFER(int32_t, places), BUFFER(int32_t, order),
                          BUFFER(int32_t, expert), BUFFER(int32_t, offsets), BUFFER(int32_t, tiles), int64_t tokens,
                          int64_t experts, int64_t k, int64_t tile_count, ROUTE_SCALARS, int64_t) {
  const int32_t* chosen = AT(ids);
  route_rows(AT(logits), AT(positions), AT(bias), ROUTE_CHOICE, tokens, columns, AT(ids), AT(weights));
  sort_pairs(chosen, tokens * k, experts, AT(offsets), [&](int32_t place, int64_t pair) {
    AT(places)[pair] = place;
    AT(order)[place] = int32_t(pair);
    AT(expert)[place] = chosen[pair];
  });
  int64_t tile = 0;
  for (int64_t e = 0; e < experts; e++) {
    for (int32_t first = AT(offsets)[e]; first < AT(offsets)[e + 1]; first += MOE_TILE) AT(tiles)[tile++] = first;
  }
  for (; tile < tile_count; tile++) AT(tiles)[tile] = -1;
}
