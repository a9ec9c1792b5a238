// From hidden states to answers: logits, log-probabilities, tokens.

#pragma once

#include <algorithm>
#include <vector>

#include "edits.h"
#include "packer.h"
#include "refining.h"

constexpr int CHUNK = 64;                  // rows whose logits are in memory at a time
constexpr double UNLIKELY_ACCEPTED = 0.3;  // see models/forward.py

// Tokens drawn one by one over consecutive rows of one part, each given the token before it.
struct Chain {
  int part, first, num;  // first and num: a range of the batch's wanted rows
  int64_t token, position;
  const float* state;  // the draft head's previous state; null: the row's hidden state gives the logits
  int to;            // the wanted row from which on the tokens are stored
  size_t start = 0;  // its first row among the rows of all chains
  double joint = 1;  // of a cycle: the chance that all tokens are accepted
  int made = 0;
};

template <class T> struct Answers {
  const Model& m;
  const Batch& b;
  const float* hidden;  // (A, stride of D)
  const int width = round_up(m.width, COLUMNS), vocab = round_up(m.vocab, COLUMNS), raw = m.exact.up_row.panels * COLUMNS;
  int64_t* const drawn = reinterpret_cast<int64_t*>(b.drawn);
  double *const probabilities = b.drawn + b.num_wanted, *const entropies = probabilities + b.num_wanted;

  void answer() const {
    if (b.hidden)
      for (int i = 0; i < b.num_wanted; i++) std::memcpy(b.hidden + (size_t)i * m.width, hidden + (size_t)i * width, m.width * 4);
    struct Wanted { int part, row; };
    std::vector<Wanted> wanted;
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      const int num = part.kind == CYCLE ? part.num_draft + 1 : part.kind == HIDDEN || part.kind == SEQUENTIAL ? 0 : part.num_wanted;
      for (int i = 0; i < num; i++) wanted.push_back({p, part.first_wanted + i});
    }
    for (size_t start = 0; start < wanted.size(); start += CHUNK) {
      const int num = (int)std::min<size_t>(CHUNK, wanted.size() - start);
      static thread_local Scratch room;
      room.begin((size_t)num * (width + vocab) * 4 + 128);
      float *x = room.take<float>((size_t)num * width), *logits = room.take<float>((size_t)num * vocab);
      for (int i = 0; i < num; i++) std::memcpy(x + (size_t)i * width, hidden + (size_t)wanted[start + i].row * width, width * 4);
      std::vector<Place> places;
      for (int i = 0; i < num; i++) places.push_back(place_of(wanted[start + i].part, wanted[start + i].row));
      project_edited<T>(m.exact, x, places, logits);
      Shortage shortage;
#pragma omp parallel for num_threads(b.threads) schedule(dynamic)
      for (int i = 0; i < num; i++)
        shortage.guard([&] { answer_row(b.parts[wanted[start + i].part], wanted[start + i].row, logits + (size_t)i * vocab); });
      shortage.check();
      std::vector<Mean> means;
      for (int i = 0; i < num; i++) {
        const Part& part = b.parts[wanted[start + i].part];
        if (part.kind != REFINEMENT) continue;
        const int place = part.first_kept + wanted[start + i].row - part.first_wanted;
        means.push_back({logits + (size_t)i * vocab, b.conditioning + (size_t)place * m.width});
      }
      if (!means.empty() && m.cache == 0) mean_embeddings<Float32>(m, means, b.threads);
      else if (!means.empty()) mean_embeddings<Bfloat16>(m, means, b.threads);
      room.end();
    }
    std::vector<Chain> chains, drafts;
    for (int p = 0; p < b.num_parts; p++) {
      if (b.parts[p].kind == SEQUENTIAL) chains.push_back(sequential_chain(p));
      if (b.parts[p].kind == CYCLE) drafts.push_back(drafting_chain(p));
    }
    if (!chains.empty()) draw_sequentially<T>(m.exact, chains);
    if (drafts.empty()) return;
    if (m.drafting.logits.panels) draw_sequentially<Int8>(m.drafting, drafts);
    else draw_sequentially<T>(m.exact, drafts);
  }

  // The edit of a wanted row.
  Place place_of(int part, int row) const { return {b.parts[part].edit, row - b.parts[part].first_wanted}; }

  // Answer for one row; its logits (V, padded) may be overwritten.
  void answer_row(const Part& part, int row, float* logits) const {
    const int at = row - part.first_wanted;
    if (part.kind == LOGITS) std::memcpy(b.logits + (size_t)(part.first_kept + at) * m.vocab, logits, (size_t)m.vocab * 4);
    else if (part.kind == LOG_PROBABILITIES) probabilities[row] = log_probability(logits, m.vocab, b.longs[part.given + at]);
    else if (part.kind == REFINEMENT) refine(part, row, logits, b.longs[part.positions + at]);
    else put(part, row, *part.rules, logits, b.longs[part.positions + at]);
  }

  // Draw a token and store it as that of a row.
  Drawn put(const Part& part, int row, const Rules& rules, float* logits, int64_t position) const {
    const size_t best = (size_t)row * b.num_best;
    int64_t* tokens = reinterpret_cast<int64_t*>(b.best) + best;
    const Extras extras = {part.entropy != 0, part.num_best, tokens, b.best + (size_t)b.num_wanted * b.num_best + best};
    const Drawn one = draw(rules, logits, vocab, position, extras);
    drawn[row] = one.token, probabilities[row] = one.probability, entropies[row] = one.entropy;
    return one;
  }

  // Stores what a refinement needs of a row, whose logits become probabilities.
  void refine(const Part& part, int row, float* logits, int64_t position) const {
    const Refined one = refined(*part.rules, logits, vocab, position);
    drawn[row] = one.drawn.token, probabilities[row] = one.drawn.probability, entropies[row] = one.drawn.entropy;
    reinterpret_cast<int64_t*>(b.best)[(size_t)row * b.num_best] = one.best;
    b.best[((size_t)b.num_wanted + row) * b.num_best] = one.best_probability;
  }

  Chain sequential_chain(int p) const {
    const Part& part = b.parts[p];
    return {p, part.first_wanted, part.num_wanted, b.longs[part.given], b.longs[part.positions], nullptr, part.first_wanted};
  }

  // The chain that drafts what follows the first drawn token that differs from the part's draft.
  Chain drafting_chain(int p) const {
    const Part& part = b.parts[p];
    const int32_t* groups = b.ints + part.groups;
    int last = 0;
    while (last < part.num_draft && drawn[part.first_wanted + last] == b.longs[part.given + last]) last++;
    const int row = part.first_wanted + last, first = groups[last], masked = part.first_wanted + part.num_draft + 1;
    return {p, masked + first, groups[last + 1] - first, drawn[row], b.longs[part.positions + last] + 1,
            hidden + (size_t)row * width, masked};
  }

  // The chance that a drafted token is accepted, from the state whose distribution it was drawn from.
  double acceptance(const float* state, double probability, double temperature) const {
    const double share = std::min(temperature, 1.0);
    if (!m.confidence || !(probability > 0)) return probability + share * UNLIKELY_ACCEPTED * (1 - probability);
    const float scale = 1 / std::sqrt(square_sum(state, m.width) / m.width + TINY);
    double sums[2];
    for (int i = 0; i < 2; i++) {
      const float* weight = m.confidence + (size_t)i * (m.width + 1);
      float total = 0;
      for (int j = 0; j < m.width; j++) total += weight[j] * state[j];
      sums[i] = total * scale + weight[m.width] * std::log(probability) + m.confidence_bias[i];
    }
    return 1 / (1 + std::exp(-((1 - share) * sums[0] + share * sums[1])));
  }

  // Run all chains in parallel, one token of each at a time, with products of numbers of Y. A chain ends after its last row,
  // before the token with which the chance that all are accepted falls below `worth`, or after a token, other than the first,
  // that is below `threshold`.
  template <class Y> void draw_sequentially(const Head& head, std::vector<Chain>& chains) const {
    const size_t most = chains.size();
    size_t rows = 0;
    for (Chain& chain : chains) {
      if (chain.token < 0) chain.num = 0;
      chain.start = rows, rows += chain.num;
    }
    static thread_local Scratch room;
    room.begin((rows * (width + raw) + most * (3 * width + vocab)) * 4 + 64 * 5);
    float *given = room.take<float>(rows * width), *of_rows = room.take<float>(rows * raw);
    float *states = room.take<float>(2 * most * width), *logits = room.take<float>(most * vocab);
    float* read = room.take<float>(most * width);
    std::vector<int64_t> tokens(most);
    std::vector<const float*> before(most), parts(most);
    std::vector<Chain*> alive, next;
    for (Chain& chain : chains) {
      if (chain.num) alive.push_back(&chain);
      if (chain.num) std::memcpy(given + chain.start * width, hidden + (size_t)chain.first * width, chain.num * width * 4);
    }
    if (has_head()) multiply<Y>(head.up_row, given, (int)rows, width, of_rows, m.width);
    for (int depth = 0; !alive.empty(); depth++) {
      const int num = (int)alive.size();
      float* state = states + depth % 2 * most * width;
      const auto others = std::stable_partition(alive.begin(), alive.end(), [&](Chain* chain) { return has_head() && chain->state; });
      for (int i = 0; i < num; i++) {
        const size_t row = alive[i]->start + depth;
        std::memcpy(state + (size_t)i * width, given + row * width, width * 4);
        tokens[i] = alive[i]->token, before[i] = alive[i]->state, parts[i] = of_rows + row * raw;
      }
      draft<Y>(head, state, parts.data(), tokens.data(), before.data(), (int)(others - alive.begin()));
      std::vector<Place> places;
      for (const Chain* chain : alive) places.push_back(place_of(chain->part, chain->first + depth));
      std::memcpy(read, state, (size_t)num * width * 4);
      project_edited<Y>(head, read, places, logits);
      next.clear();
      for (int i = 0; i < num; i++) {
        Chain& chain = *alive[i];
        const Part& part = b.parts[chain.part];
        const int row = chain.to + depth;
        const Drawn one = put(part, row, *part.rules, logits + (size_t)i * vocab, chain.position + depth);
        chain.token = one.token, chain.state = state + (size_t)i * width;
        if (b.hidden && part.kind == SEQUENTIAL) std::memcpy(b.hidden + (size_t)row * m.width, chain.state, m.width * 4);
        if (part.kind == CYCLE) {
          const double chance = acceptance(chain.state, one.probability, part.rules->temperature);
          chain.joint *= entropies[row] = chance;
          if (one.token < 0 || !(chain.joint >= part.worth)) continue;
        }
        chain.made++;
        const bool ends = one.token < 0 || (chain.made > 1 && one.probability < part.threshold);
        if (!ends && chain.made < chain.num) next.push_back(alive[i]);
      }
      alive.swap(next);
    }
    room.end();
    for (const Chain& chain : chains) b.made[chain.part] = chain.made;
  }

  bool has_head() const { return m.exact.up_state.panels > 0; }

  // A token's embedding, as it is in the weights.
  void embedding_of(int64_t token, float* to) const {
    if (!m.embedding) return unpack_column<HeadOf<T>>(m.tokens, token, m.width, to);
    auto read = [&](const auto* rows) {
      const auto* from = rows + token * m.width;
      for (int i = 0; i < width; i += LANES) store(to + i, i < m.width ? widen(from + i, m.width - i) : F{});
    };
    if (m.cache) read(static_cast<const uint16_t*>(m.embedding));
    else read(static_cast<const float*>(m.embedding));
  }

  // The products (num, raw) of the previous tokens' embeddings.
  template <class Y> void of_tokens(const Head& head, const int64_t* tokens, int num, float* to) const {
    if (m.up_token) {
      for (int i = 0; i < num; i++) std::memcpy(to + (size_t)i * raw, m.up_token + tokens[i] * raw, raw * 4);
      return;
    }
    std::vector<float> rows((size_t)num * width);
    for (int i = 0; i < num; i++) embedding_of(tokens[i], rows.data() + (size_t)i * width);
    multiply<Y>(head.up_before, rows.data(), num, width, to, m.width);
  }

  // A step of the draft head: replaces the rows' hidden states (num, stride of D) by the next states, computed from them, their
  // products (num,) with `up_row`, the previous tokens (num,) and the previous states.
  template <class Y>
  void draft(const Head& head, float* rows, const float* const* of_rows, const int64_t* tokens, const float* const* before, int num) const {
    if (!num) return;
    const int inner = round_up(raw / 2, COLUMNS);
    static thread_local Scratch room;
    room.begin((size_t)num * (2 * width + 2 * raw + inner) * 4 + 64 * 5);
    float *past = room.take<float>((size_t)num * width), *up = room.take<float>((size_t)num * raw);
    float* before_up = room.take<float>((size_t)num * raw);
    of_tokens<Y>(head, tokens, num, before_up);
    float *h = room.take<float>((size_t)num * inner), *out = room.take<float>((size_t)num * width);
    for (int i = 0; i < num; i++) normalize(before[i], m.width, width, false, TINY, past + (size_t)i * width);
    multiply<Y>(head.up_state, past, num, width, up);
    std::memset(h, 0, (size_t)num * inner * 4);
    for (int i = 0; i < num; i++)
      for (int column = 0; column < raw; column += COLUMNS) {
        const float *of_token = before_up + (size_t)i * raw + column, *of_row = of_rows[i] + column;
        F v[VECTORS];
        for (int j = 0; j < VECTORS; j++)
          v[j] = load<F>(up + (size_t)i * raw + column + j * LANES) + load<F>(of_row + j * LANES) + load<F>(of_token + j * LANES);
        gate(v, SILU, h + (size_t)i * inner + column / 2);
      }
    multiply<Y>(head.down, h, num, inner, out);
    for (int i = 0; i < num * width; i += LANES) store(rows + i, load<F>(rows + i) + load<F>(out + i));
    room.end();
  }

  // Logits (rows, V padded) of hidden states (rows, stride of D), capped if the model caps them. Those of tokens that are never
  // predicted are minus infinity.
  template <class Y> void project(const Head& head, const float* x, int rows, float* out) const {
    if (head.ids) return project_some<Y>(head, x, rows, out);
    multiply<Y>(head.logits, x, rows, width, out);
    if (!m.gemma) return;
    const float cap = m.gemma->softcap;
#pragma omp parallel for num_threads(b.threads)
    for (int row = 0; row < rows; row++)
      for (float *at = out + (size_t)row * vocab, *end = at + vocab; at < end; at += LANES) {
        const F v = load<F>(at);
        store(at, v == all(NEVER) ? v : hyperbolic(v / cap) * cap);
      }
  }

  // The same where only some tokens are drawn.
  template <class Y> void project_some(const Head& head, const float* x, int rows, float* out) const {
    const size_t columns = head.logits.panels * COLUMNS;
    static thread_local Scratch room;
    room.begin(rows * columns * 4 + 64);
    float* some = room.take<float>(rows * columns);
    multiply<Y>(head.logits, x, rows, width, some);
    std::fill(out, out + (size_t)rows * vocab, NEVER);
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < head.num; i++) out[(size_t)row * vocab + head.ids[i]] = some[row * columns + i];
    room.end();
  }

  // The same after the edits of the rows, which are made in x.
  template <class Y> void project_edited(const Head& head, float* x, const std::vector<Place>& places, float* out) const {
    const int num = (int)places.size();
    const bool edited = std::any_of(places.begin(), places.end(), [](const Place& at) { return at.edit; });
    if (edited)
      write_concepts(m, places, x, width, [&](const Linear& linear, const float* from, int rows, int stride, float* to) {
        multiply<Float32>(linear, from, rows, stride, to);
      });
    project<Y>(head, x, num, out);
    if (!edited) return;
#pragma omp parallel for num_threads(b.threads)
    for (int i = 0; i < num; i++) take_bans(m, places[i], out + (size_t)i * vocab);
  }

  // A single product: rows of x (rows, stride) to out (rows, panels * COLUMNS). If `num` is given, the first `num` numbers of
  // each row are normalized first.
  template <class Y> void multiply(const Linear& linear, const float* x, int rows, int stride, float* out, int num = 0) const {
    static thread_local Scratch room;
    const size_t words = (size_t)round_up(rows, BLOCK) * row_words<Y>(linear);
    room.begin((words + rows + (num ? (size_t)rows * stride : 0)) * 4 + 64 * 4);
    const Inputs inputs = {room.take<uint32_t>(words), room.take<float>(rows)};
    float* units = room.take<float>(num ? (size_t)rows * stride : 0);
#pragma omp parallel num_threads(b.threads)
    {
      const Worker worker;
      prepare<Y>(x, rows, stride, linear, inputs, units, num, {false, TINY});
      product<Y>(worker, linear, inputs, rows, [&](int row, int panel, const F* v) {
        std::memcpy(out + (size_t)row * linear.panels * COLUMNS + panel * COLUMNS, v, COLUMNS * 4);
      });
    }
  }
};
