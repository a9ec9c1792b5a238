// A whole forward of two requests against plain loops: a small random model in numbers of T, its cache and embeddings in C.

#pragma once

#include "grouped.h"

constexpr int WIDTH = 40, HEADS = 4, KV_HEADS = 2, HEAD = 10, ROTARY = 8, INNER = 24, LAYERS = 2, VOCAB = 70, POSITIONS = 96;
constexpr int EXPERTS = 6, EXPERT_INNER = 20;
enum Shape { PLAIN, CLASSIC, MIXED };

// Rows of gates and values, in alternating groups; rows that there are not are zero.
inline Rows random_gates(int inner, int seed) {
  Rows out = random_rows(2 * round_up(inner, GROUP), WIDTH, seed, 0.2f);
  for (int i = 0; i < (int)out.size(); i++)
    if (i / (2 * GROUP) * GROUP + i % GROUP >= inner) out[i].assign(WIDTH, 0);
  return out;
}

template <class T, class C> struct Whole {
  struct Matrices { Matrix<T> qkv, out, up, down; };
  const bool classic;  // LayerNorm, learned positions and a plain GELU; else RMSNorm, rotation, QK-norm and gates
  const bool mixed;    // experts beside the MLP; of smaller numbers all of them, since rounding could decide between two
  std::vector<Matrix<Float32>> routers;
  std::vector<std::vector<Matrix<T>>> expert_ups, expert_downs;  // (layers, experts)
  std::vector<std::vector<Linear>> linears;
  const Row expert_bias = random_rows(1, EXPERTS, 11, 0.2f)[0];
  Rows embedding = random_rows(VOCAB, WIDTH, 1), learned = random_rows(POSITIONS, WIDTH, 2);
  const Rows before = random_rows(2, WIDTH, 12);  // weights of the norms of attention and of the MLP
  std::vector<C> stored;
  Row learned_flat, qk, final_weight, cos, sin;
  std::vector<Matrices> matrices;
  std::vector<Layer> layers;
  Matrix<HeadOf<T>> head;
  Model model{};

  explicit Whole(Shape shape) : classic(shape == CLASSIC), mixed(shape == MIXED), head(random_rows(VOCAB, WIDTH, 3, 0.3f)) {
    for (Row& row : embedding)
      for (float& x : row) {
        C number[LANES];
        narrow(all(x), number);
        stored.push_back(number[0]), x = narrowed(x, number);
      }
    for (const Row& row : learned) learned_flat.insert(learned_flat.end(), row.begin(), row.end());
    final_weight = random_rows(1, WIDTH, 4)[0];
    for (int i = 0; i < (HEADS + KV_HEADS) * HEAD; i++) qk.push_back((i < HEADS * HEAD ? 0.3f : 1.0f) * (1 + 0.1f * (i % HEAD % 3)));
    for (int position = 0; position < POSITIONS; position++)
      for (int i = 0; i < ROTARY / 2; i++) {
        const double angle = position * std::pow(100.0, -2.0 * i / ROTARY);
        cos.push_back((float)std::cos(angle)), sin.push_back((float)std::sin(angle));
      }
    for (int layer = 0; layer < LAYERS; layer++) {
      auto make = [&](int out, int in, int kind) { return Matrix<T>(random_rows(out, in, 10 * layer + kind, 0.2f), true); };
      const Rows up = classic ? random_rows(INNER, WIDTH, 10 * layer + 7, 0.2f) : random_gates(INNER, 10 * layer + 7);
      matrices.push_back({make((HEADS + 2 * KV_HEADS) * HEAD, WIDTH, 5), make(WIDTH, HEADS * HEAD, 6), Matrix<T>(up), make(WIDTH, INNER, 8)});
    }
    for (const Matrices& own : matrices)
      layers.push_back({own.qkv.linear, own.out.linear, own.up.linear, own.down.linear, {}, {}, {}, {}, qk.data(), before[0].data(), before[1].data(),
                        nullptr, nullptr, nullptr, nullptr});
    for (int layer = 0; layer < LAYERS && mixed; layer++) add_experts(layer);
    for (int layer = 0; layer < LAYERS && mixed; layer++) {
      layers[layer].router = routers[layer].linear, layers[layer].expert_bias = expert_bias.data();
      layers[layer].expert_up = linears[2 * layer].data(), layers[layer].expert_down = linears[2 * layer + 1].data();
    }
    if (mixed) model.experts = {EXPERTS, T::PER == 1 ? 2 : EXPERTS, EXPERT_INNER, INNER, 3, T::PER == 1 ? 2 : 3, 1, 1, 2.5f};
    model.width = WIDTH, model.heads = HEADS, model.kv_heads = KV_HEADS, model.head = HEAD, model.rotary = classic ? 0 : ROTARY;
    model.inner = INNER, model.num_layers = LAYERS, model.vocab = VOCAB, model.positions = POSITIONS;
    model.product = T::PER == 8 ? 3 : T::PER / 2, model.cache = sizeof(C) == 2, model.gated = !classic, model.activation = classic ? GELU_TANH : SILU;
    model.centered = classic, model.qk_norm = !classic, model.pre_norm = 1, model.eps = 1e-5f, model.embedding_scale = 1, model.embedding = stored.data();
    model.learned = classic ? learned_flat.data() : nullptr, model.final_weight = final_weight.data();
    model.cos = classic ? nullptr : cos.data(), model.sin = classic ? nullptr : sin.data();
    model.layers = layers.data(), model.exact.logits = head.linear;
  }

  void add_experts(int layer) {
    routers.emplace_back(random_rows(EXPERTS, WIDTH, 30 + layer, 0.3f));
    std::vector<Matrix<T>> ups, downs;
    for (int i = 0; i < EXPERTS; i++) {
      ups.emplace_back(random_gates(EXPERT_INNER, 40 + 20 * layer + i));
      downs.emplace_back(random_rows(WIDTH, EXPERT_INNER, 50 + 20 * layer + i, 0.2f));
    }
    expert_ups.push_back(std::move(ups)), expert_downs.push_back(std::move(downs));
    for (const auto* own : {&expert_ups.back(), &expert_downs.back()}) {
      linears.emplace_back();
      for (const Matrix<T>& matrix : *own) linears.back().push_back(matrix.linear);
    }
  }

  // The weighted sum of the experts of a row.
  Row experts_of(const Row& x, int layer) const {
    const Experts& e = model.experts;
    const std::vector<double> weights = chosen_weights(e, routers[layer].of(x), expert_bias);
    Row out(WIDTH);
    for (int i = 0; i < EXPERTS; i++) {
      if (weights[i] == 0) continue;
      const Row made = expert_downs[layer][i].of(inside(expert_ups[layer][i].of(x), EXPERT_INNER));
      for (int j = 0; j < WIDTH; j++) out[j] += (float)(weights[i] * made[j]);
    }
    return out;
  }

  Row unit(const float* x, int num, bool centered) const {
    double mean = 0, square = 0;
    for (int i = 0; i < num; i++) mean += centered ? x[i] / (double)num : 0;
    for (int i = 0; i < num; i++) square += (x[i] - mean) * (x[i] - mean) / num;
    Row out(num);
    for (int i = 0; i < num; i++) out[i] = (float)((x[i] - mean) / std::sqrt(square + 1e-5));
    return out;
  }

  // What a norm makes of a row.
  Row weighted(const Row& row, const Row& weight) const {
    Row out = unit(row.data(), WIDTH, classic);
    for (int j = 0; j < WIDTH; j++) out[j] *= weight[j];
    return out;
  }

  // Query and key heads, normed and turned, and values as they are.
  Rows heads(const Row& qkv, int position) const {
    Rows out;
    for (int head = 0; head < HEADS + 2 * KV_HEADS; head++) {
      Row x(qkv.begin() + head * HEAD, qkv.begin() + (head + 1) * HEAD);
      if (head < HEADS + KV_HEADS) {
        if (!classic) x = unit(x.data(), HEAD, false);
        for (int i = 0; i < HEAD; i++) x[i] *= qk[head * HEAD + i];
        for (int i = 0; i < ROTARY / 2 && !classic; i++) {
          const double angle = position * std::pow(100.0, -2.0 * i / ROTARY), low = x[i], high = x[i + ROTARY / 2];
          x[i] = (float)(low * std::cos(angle) - high * std::sin(angle));
          x[i + ROTARY / 2] = (float)(high * std::cos(angle) + low * std::sin(angle));
        }
      }
      out.push_back(x);
    }
    return out;
  }

  Row inside(const Row& up, int inner) const {
    Row out(inner);
    for (int i = 0; i < inner; i++) {
      const double x = classic ? up[i] : up[i / GROUP * 2 * GROUP + i % GROUP];
      if (classic) out[i] = (float)(x / 2 * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x))));
      else out[i] = (float)(x / (1 + std::exp(-x)) * up[i / GROUP * 2 * GROUP + GROUP + i % GROUP]);
    }
    return out;
  }

  // Logits of every row; row i sees the rows before seen[i].
  Rows logits(const std::vector<int64_t>& tokens, const std::vector<int>& seen) const {
    const int num = (int)tokens.size();
    Rows x, out;
    for (int i = 0; i < num; i++) {
      x.push_back(embedding[tokens[i]]);
      for (int j = 0; j < WIDTH && classic; j++) x[i][j] += learned[i][j];
    }
    auto add = [](Row& to, const Row& from) {
      for (int j = 0; j < WIDTH; j++) to[j] += from[j];
    };
    for (int layer = 0; layer < LAYERS; layer++) {
      const Matrices& own = matrices[layer];
      std::vector<Rows> made;
      for (int i = 0; i < num; i++) made.push_back(heads(own.qkv.of(weighted(x[i], before[0])), i));
      for (int i = 0; i < num; i++) {
        Row gathered;
        for (int head = 0; head < HEADS; head++) {
          Rows keys, values;
          const int kv = HEADS + head / (HEADS / KV_HEADS);
          for (int j = 0; j < seen[i]; j++) keys.push_back(made[j][kv]), values.push_back(made[j][kv + KV_HEADS]);
          const Row one = attended(made[i][head], keys, values, std::vector<bool>(seen[i], true));
          gathered.insert(gathered.end(), one.begin(), one.end());
        }
        add(x[i], own.out.of(gathered));
      }
      for (Row& row : x) {
        const Row given = weighted(row, before[1]);
        add(row, own.down.of(inside(own.up.of(given), INNER)));
        if (mixed) add(row, experts_of(given, layer));
      }
    }
    for (const Row& row : x) {
      out.push_back(head.of(weighted(row, final_weight)));
    }
    return out;
  }
};

// One call, as Python packs it: every row of every part is wanted, and its logits.
struct Call {
  std::vector<Part> parts;
  std::vector<int64_t> tokens, position;
  std::vector<int32_t> end, wanted;

  void add(const Cache* cache, const std::vector<int64_t>& given, int past, int clean) {
    const int num = (int)given.size(), first = (int)tokens.size();
    Part part{};
    part.cache = cache, part.first = part.first_wanted = part.first_kept = first, part.rows = part.num_wanted = num;
    part.clean = clean, part.past = past, part.kind = LOGITS;
    parts.push_back(part);
    for (int i = 0; i < num; i++) {
      tokens.push_back(given[i]), position.push_back(past + i), wanted.push_back(i);
      end.push_back(past + (i < clean ? i + 1 : num));
    }
  }

  std::vector<float> run(const Model& model, int threads) const {
    std::vector<float> out(tokens.size() * VOCAB);
    const int wrong = code(model, threads, out.data());
    expect(!wrong, "the code of an error", wrong);
    return out;
  }

  // The code that the call returns; it writes logits (rows, V).
  int code(const Model& model, int threads, float* out) const {
    const int rows = (int)tokens.size();
    const Packed sizes = {(int)parts.size(), rows, rows, 0, threads, 0, 0, 0};
    std::vector<char> given;
    auto put = [&](const void* from, size_t num) { given.insert(given.end(), (const char*)from, (const char*)from + num); };
    put(&sizes, sizeof sizes);
    put(parts.data(), parts.size() * sizeof(Part));
    put(tokens.data(), 8 * rows), put(position.data(), 8 * rows), put(end.data(), 4 * rows), put(wanted.data(), 4 * rows);
    std::vector<double> drawn(3 * rows);
    std::vector<int32_t> made(parts.size());
    return daguerre_forward(&model, given.data(), given.size(), nullptr, out, nullptr, drawn.data(), nullptr, made.data());
  }
};

template <class T, class C> void check_forward(Shape shape, double limit) {
  const Whole<T, C> whole(shape);
  const Sizes<C> sizes(HEAD);
  std::vector<uint32_t> page((size_t)LAYERS * KV_HEADS * (sizes.key_panel + sizes.value_panel)), last(page);
  char* const pages[] = {reinterpret_cast<char*>(page.data()), reinterpret_cast<char*>(last.data())};
  const Cache cache = {pages, nullptr, LAYERS, 0};
  std::vector<int64_t> tokens, other;
  for (int i = 0; i < 72; i++) tokens.push_back(i * 31 % VOCAB), other.push_back((i * 17 + 5) % VOCAB);
  const std::vector<int64_t> more(tokens.begin() + 62, tokens.end());  // 2 clean rows, that end a panel, and 8 noisy ones
  Call first, second;
  first.add(&cache, {tokens.begin(), tokens.begin() + 62}, 0, 62);
  first.run(whole.model, 1);
  second.add(nullptr, other, 0, 72);
  second.add(&cache, more, 62, 2);
  const std::vector<float> got = second.run(whole.model, 1);
  expect(got == second.run(whole.model, 3), "bits by three threads");
  std::vector<int> causal, at_end;
  for (int i = 0; i < 72; i++) causal.push_back(i + 1), at_end.push_back(i < 64 ? i + 1 : 72);
  Rows want = whole.logits(other, causal), behind = whole.logits(tokens, at_end);
  want.insert(want.end(), behind.begin() + 62, behind.end());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); i++)
    for (int j = 0; j < VOCAB; j++) {
      error += std::pow(got[i * VOCAB + j] - want[i][j], 2), size += std::pow(want[i][j], 2);
    }
  near(std::sqrt(error / size), 0, limit, "a whole forward's logits, by the root of their mean square");
}
