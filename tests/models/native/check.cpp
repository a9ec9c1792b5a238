// The native kernels against plain loops, for whatever processor this is compiled for; says what differs, and exits with 1.

#include <atomic>
#include <thread>

#include "stored_blocks.h"
#include "whole.h"

// How many more blocks of memory there are for `Scratch`, the only one to ask for arrays of char.
constexpr int ENOUGH = 1 << 30;
std::atomic<int> blocks_left{ENOUGH};
void* operator new[](size_t num) {
  void* made = blocks_left-- > 0 ? std::malloc(num) : nullptr;
  if (!made) throw std::bad_alloc();
  return made;
}
void operator delete[](void* made) noexcept { std::free(made); }
void operator delete[](void* made, size_t) noexcept { std::free(made); }

template <class X, class V> V vector_of(const std::vector<X>& from, size_t start) {
  V v{};
  for (int i = 0; i < (int)(sizeof(V) / sizeof(X)); i++) v[i] = from[std::min(start + i, from.size() - 1)];
  return v;
}

void check_functions() {
  std::vector<float> given = {-200, -88, -87.01f, -86.9f, -1e-7f, 0, 1e-7f, 87.5f};
  for (int i = 0; i < 4000; i++) given.push_back(-87 + 0.0437f * i);
  for (size_t start = 0; start < given.size(); start += LANES) {
    const F x = vector_of<float, F>(given, start), e = exponential(x), h = hyperbolic(x), f = error_function(x);
    for (int i = 0; i < LANES; i++) {
      const double want = x[i] < -87 ? 0 : std::exp((double)x[i]);
      near(e[i], want, 2.5e-7 * want, "e^x in float32");
      near(h[i], std::tanh((double)x[i]), 2e-7, "tanh x");
      near(f[i], std::erf((double)x[i]), 5e-7, "erf x");
    }
    expect(greatest(x) == *std::max_element(&x[0], &x[0] + LANES), "the greatest lane");
    double total = 0, size = 0;
    for (int i = 0; i < LANES; i++) total += x[i], size += std::fabs(x[i]);
    near(sum(x), total, 3e-7 * size, "the sum of lanes");
  }
  std::vector<double> precise = {-800, -700.5, -699.5, -1e-12, 0};
  for (int i = 0; i < 4000; i++) precise.push_back(-690 + 0.1735 * i);
  for (size_t start = 0; start < precise.size(); start += PAIRS) {
    const D x = vector_of<double, D>(precise, start), e = exponential(x);
    for (int i = 0; i < PAIRS; i++) {
      const double want = x[i] < -700 ? 0 : std::exp(x[i]);
      near(e[i], want, 6e-16 * want, "e^x in float64");
    }
  }
}

void check_conversions() {
  for (uint32_t u = 0; u < 0x7f7f0000u; u += 0x7ff1) {  // with ties, in either sign; infinities and what is no number left out
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float x = bits<float>(u | sign), want = to_bfloat16(x);
      if (std::fabs(x) < 2e-38f) continue;  // some processors make zeros of denormal numbers
      uint16_t stored[LANES] = {};
      narrow(all(x), stored);
      expect(widen(stored)[LANES - 1] == want && narrowed(x, stored) == want, "bfloat16", widen(stored)[0], want);
    }
  }
  float few[LANES] = {};
  for (int num = 1; num <= LANES; num++) {
    narrow(all(3), few, num);
    expect(sum(widen(few, num)) == 3.0f * num && (num == LANES || few[num] == 0), "the first few lanes");
    few[num - 1] = 0;
    std::memset(few, 0, sizeof few);
  }
}

// The sums of Int8 are exact given the codes of the inputs, which lie as bytes or as pairs of 16 bits.
int code_of_input(const uint32_t* row, int i) {
  if (Int8::PARTS == 1) return row[i / 4] >> (8 * (i % 4)) & 0xff;
  return row[i / 4 * 2 + i % 2] >> (16 * (i % 4 / 2)) & 0xffff;
}

template <class T> void check_products(int num_in, int num_out) {
  const Matrix<T> packed(random_rows(num_out, num_in, num_in), true);
  const Linear& linear = packed.linear;
  const int most = 70, stride = linear.words * T::PER, width = linear.panels * COLUMNS;
  Rows inputs = random_rows(most, num_in, 1);
  for (int i = 0; i < num_in; i++) inputs[3][i] = 0, inputs[4][i] *= i ? 1 : 40;
  std::vector<float> given((size_t)most * stride, 0), scales(most), out((size_t)most * width);
  for (int row = 0; row < most; row++) std::copy(inputs[row].begin(), inputs[row].end(), given.begin() + (size_t)row * stride);
  std::vector<uint32_t> rows((size_t)round_up(most, BLOCK) * linear.words * T::PARTS + 16);
  const Inputs to = {reinterpret_cast<uint32_t*>(round_up((int)(reinterpret_cast<uintptr_t>(rows.data()) % 64), 64)
                                                 - reinterpret_cast<uintptr_t>(rows.data()) % 64 + reinterpret_cast<char*>(rows.data())),
                     scales.data()};
  const Worker worker;
  std::vector<float> whole;
  for (int num : {most, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 40, 64}) {
    std::fill(out.begin(), out.end(), -1.0f);
    prepare<T>(given.data(), num, stride, linear, to);
    product<T>(worker, linear, to, num, [&](int row, int panel, const F* v) {
      std::memcpy(out.data() + (size_t)row * width + panel * COLUMNS, v, COLUMNS * 4);
    });
    if (num == most) whole = out;
    expect(std::equal(out.begin(), out.begin() + (size_t)num * width, whole.begin()), "a row's bits beside others");
  }
  prepare<T>(given.data(), most, stride, linear, to);
  for (int row = 0; row < most; row++) {
    float step;
    const Row input = Matrix<T>::rounded(inputs[row], &step), want = packed.of(inputs[row]);
    for (int column = 0; column < width; column++) {
      const float got = whole[(size_t)row * width + column];
      if (column >= num_out) {
        expect(got == 0, "a column that the matrix does not have", got);
        continue;
      }
      double size = std::fabs(packed.bias[column]), exact = 0;
      for (int i = 0; i < num_in; i++) size += std::fabs((double)input[i] * packed.matrix[column][i]);
      if (T::PER == 4) {
        for (int i = 0; i < num_in; i++) {
          const int code = code_of_input(to.rows + (size_t)row * linear.words * T::PARTS, i) - 128;
          near(code, inputs[row][i] / (step ? step : 1), 0.5 + 1e-4, "an 8-bit code");
          exact += code * packed.matrix[column][i];
        }
        const float scaled = (float)exact * (packed.scale[column] * scales[row]);
        near(got, scaled + packed.bias[column], 3e-7 * (std::fabs(scaled) + 0.3), "a product of 8-bit numbers");
      } else {
        near(got, want[column], (T::PER == 2 && T::PARTS == 1 ? 5e-3 : 1e-6) * size + 1e-30, "a product");
      }
    }
  }
}

template <class C> void check_attention(int head, int num_clean, int num_noisy, bool masked, bool codes) {
  const int heads = 4, kv_heads = 2, groups = heads / kv_heads, rows = num_noisy + 2, total = num_clean + num_noisy;
  const Sizes<C> sizes(head);
  Rows k = random_rows(total * kv_heads, head, 5), v = random_rows(total * kv_heads, head, 6);
  const Rows q = random_rows(rows * heads, head, 7, 2 / std::sqrt((float)head));
  const size_t page = (size_t)kv_heads * (sizes.key_panel + sizes.value_panel + 2 * COLUMNS);
  std::vector<std::vector<uint32_t>> clean_pages(num_clean / COLUMNS + 1, std::vector<uint32_t>(page));
  std::vector<uint32_t> memory((num_noisy / COLUMNS + 1) * page);
  std::vector<char*> pages;
  for (auto& one : clean_pages) pages.push_back(reinterpret_cast<char*>(one.data()));
  Keys keys{};
  keys.cache = {pages.data(), nullptr, 1, codes};
  keys.noisy = {nullptr, reinterpret_cast<char*>(memory.data()), 1, 0};
  keys.num_clean = num_clean, keys.num_noisy = num_noisy;
  for (int kv = 0; kv < kv_heads; kv++) {
    const Panels<C> clean(keys.cache, sizes, 0, kv_heads, kv), noisy(keys.noisy, sizes, 0, kv_heads, kv);
    for (int i = 0; i < total; i++) {
      Row &key = k[i * kv_heads + kv], &value = v[i * kv_heads + kv];
      keep<C>(key.data(), value.data(), i < num_clean ? clean : noisy, sizes, i < num_clean ? i : i - num_clean, head);
      for (Row* x : {&key, &value}) {
        const float scale = scale_of<C>(x->data(), head);
        for (float& y : *x) {
          if (codes && i < num_clean) y = code_of(y, scale) * scale;
          if (sizeof(C) == 2) y = to_bfloat16(y);
        }
      }
    }
  }
  const int width = std::min(total, masked ? num_noisy + 9 : 0);
  std::vector<int32_t> begin(rows), end(rows), wanted(rows);
  std::vector<uint8_t> mask((size_t)rows * width + COLUMNS * 4);
  for (int i = 0; i < rows; i++) {
    begin[i] = i % 3 * 5, end[i] = std::min(total, begin[i] + 1 + i * 17), wanted[i] = i;
    for (int j = 0; j < width; j++) mask[(size_t)i * width + j] = (i * 7 + j * 3) % 5 < 2;
  }
  end[1] = begin[1] = 0;  // a row that sees nothing but what its mask shows
  keys.begin = begin.data(), keys.end = end.data(), keys.mask = masked ? mask.data() : nullptr, keys.mask_width = width;
  Row given((size_t)rows * heads * head + LANES), out(given.size());
  for (int i = 0; i < rows * heads; i++) std::copy(q[i].begin(), q[i].end(), given.begin() + (size_t)i * head);
  const Worker worker;
  for (int kv = 0; kv < kv_heads; kv++)
    for (int first = 0; first < rows * groups; first += QUERIES)
      attend<C>(worker, keys, 0, kv_heads, kv, groups, head, wanted.data(), first, std::min(QUERIES, rows * groups - first),
                given.data(), heads * head, out.data(), heads * head);
  for (int i = 0; i < rows; i++) {
    std::vector<bool> seen(total);
    for (int j = 0; j < total; j++)
      seen[j] = (j >= begin[i] && j < end[i]) || (j >= total - width && mask[(size_t)i * width + j - (total - width)]);
    for (int n = 0; n < heads; n++) {
      Rows own_keys, own_values;
      for (int j = 0; j < total; j++)
        own_keys.push_back(k[j * kv_heads + n / groups]), own_values.push_back(v[j * kv_heads + n / groups]);
      const Row want = attended(q[i * heads + n], own_keys, own_values, seen);
      for (int j = 0; j < head; j++)
        near(out[((size_t)i * heads + n) * head + j], want[j], sizeof(C) == 2 ? 3e-2 : 5e-6, "attention");
    }
  }
}

void check_draws(int vocab, int positions) {
  const int size = round_up(vocab, COLUMNS);
  const int32_t bias_tokens[] = {3, 5}, allowed[] = {7, 9};
  const double bias_values[] = {1.5, -INFINITY};
  const int64_t bans[] = {11, 0, 100, 13, 4, 6};
  Rules rules{0, 1, 0, bias_tokens, bias_values, bans, allowed, 8, -5, 3, 2, 1, 0, 2, 2, 2};
  near(exponential_number(hashed(rules, 17), 5), 1.2507150830379914, 1e-15, "a random number");  // as sampling/random.py has it
  Row given = random_rows(1, vocab, 9, 2)[0];
  given[20] = given[30] = 9;  // the first of equals is taken
  for (int kind = 0; kind < 6; kind++)
    for (int64_t position = 0; position < positions; position++) {
      rules.temperature = kind ? 0.5 + 0.25 * kind : 0, rules.top_k = kind == 2 || kind == 4 ? 6 : 0, rules.top_p = kind > 2 ? 0.8 : 1;
      rules.min_p = kind == 5 ? 0.3 : 0;
      Row logits(size, NEVER);
      std::copy(given.begin(), given.end(), logits.begin());
      std::vector<double> x(vocab), warm(vocab);
      double top = -INFINITY, mass = 0, entropy = 0;
      for (int i = 0; i < vocab; i++) {
        x[i] = given[i] + (i == 3 ? 1.5 : i == 5 ? -INFINITY : 0);
        if (i == 11 || (i == 13 && position >= 4 && position < 6) || (position == 8 && i != 7 && i != 9)) x[i] = -INFINITY;
        top = std::max(top, x[i]);
      }
      for (double y : x) mass += std::exp(y - top);
      for (double y : x)
        if (y > -INFINITY) entropy -= std::exp(y - top) / mass * (y - top - std::log(mass));
      std::vector<int> order(vocab);
      for (int i = 0; i < vocab; i++) order[i] = i;
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
      double kept = 0, before = 0, least = INFINITY;
      for (int place = 0; place < vocab; place++) {
        warm[order[place]] = kind && (!rules.top_k || place < rules.top_k) ? std::exp((x[order[place]] - top) / rules.temperature) : 0;
        kept += warm[order[place]];
      }
      for (int token : order) {
        const double weight = warm[token];
        if (before >= rules.top_p * kept) warm[token] = 0;
        before += weight;
      }
      for (double& weight : warm)
        if (weight < rules.min_p * warm[order[0]] && &weight != &warm[order[0]]) weight = 0;
      int64_t want = order[0];
      for (int i = 0; i < vocab && kind; i++) {
        const double time = exponential_number(hashed(rules, position), i) / warm[i];
        if (warm[i] > 0 && time < least) least = time, want = i;
      }
      int64_t best[2];
      double chances[2];
      const Drawn one = draw(rules, logits.data(), size, position, {true, 2, best, chances});
      expect(one.token == want, "a token drawn", (double)one.token, (double)want);
      near(one.probability, std::exp(x[want] - top) / mass, 1e-6, "its probability");
      near(one.entropy, entropy, 1e-5, "its entropy");
      expect(best[0] == order[0] && best[1] == order[1], "the likeliest tokens", (double)best[0], order[0]);
      near(chances[1], std::exp(x[order[1]] - top) / mass, 1e-6, "the second likeliest's probability");
    }
  Row none(size, NEVER);
  expect(draw(rules, none.data(), size, 0).token == -1, "a token where none is left");
  double mass = 0;
  for (float y : given) mass += std::exp((double)y);
  Row logits(size, NEVER);
  std::copy(given.begin(), given.end(), logits.begin());
  near(log_probability(logits.data(), size, 12), given[12] - std::log(mass), 1e-9, "a log-probability");
}

// What a refinement asks for of a row of logits, and mean embeddings of several.
template <class T> void check_refinements() {
  constexpr int vocab = 300, width = 70, chunk = 128, rows = 35, size = (vocab + COLUMNS - 1) / COLUMNS * COLUMNS;
  const Rows embedding = random_rows(vocab, width, 21);
  std::vector<Matrix<T>> parts;
  std::vector<Linear> linears;
  for (int first = 0; first < vocab; first += chunk) {
    Rows transposed(width);
    for (Row& row : transposed)
      for (int i = first; i < std::min(vocab, first + chunk); i++) row.push_back(embedding[i][&row - transposed.data()]);
    parts.emplace_back(transposed);
  }
  for (const Matrix<T>& part : parts) linears.push_back(part.linear);
  Gemma gemma{};
  gemma.mean = linears.data(), gemma.chunk = chunk, gemma.scale = 1.5f;
  Model model{};
  model.width = width, model.vocab = vocab, model.gemma = &gemma;
  const int64_t bans[] = {7, 0, 1000};
  const int32_t tokens[] = {20};
  const double values[] = {2.5};
  Rules rules{};
  rules.bans = bans, rules.num_bans = 1, rules.bias_tokens = tokens, rules.bias_values = values, rules.num_bias = 1, rules.seed = 9;
  Rows logits, out(rows, Row(width));
  std::vector<Mean> means;
  for (int row = 0; row < rows; row++) {
    logits.push_back(random_rows(1, size, 60 + row, 3)[0]);
    Row& x = logits.back();
    std::fill(x.begin() + vocab, x.end(), NEVER);
    Row given = x;
    rules.temperature = 0.4 + 0.1 * (row % 7), rules.step = row;
    given[20] += 2.5f, given[7] = NEVER;
    const Refined one = refined(rules, x.data(), size, row);
    const int best = (int)(std::max_element(given.begin(), given.end()) - given.begin());
    double mass = 0, total = 0, entropy = 0;
    std::vector<double> weights;
    for (int i = 0; i < vocab; i++) {
      mass += std::exp((double)given[i] - given[best]);
      weights.push_back(std::exp(((double)given[i] - given[best]) / rules.temperature)), total += weights[i];
    }
    double below = 0;
    const double target = (hashed(rules, row) >> 11) * 0x1p-53 * total;
    int want = 0;
    for (int i = 0; i < vocab; i++) {
      near(x[i], weights[i] / total, 1e-6, "the probability of a token");
      if (weights[i] > 0) entropy -= weights[i] / total * std::log(weights[i] / total);
      if (below <= target) want = i;
      below += weights[i];
    }
    expect(one.drawn.token == want && one.best == best, "a token drawn by one number", (double)one.drawn.token, want);
    near(one.drawn.probability, std::exp((double)given[want] - given[best]) / mass, 1e-6, "its probability");
    near(one.drawn.entropy, entropy, 1e-5, "the entropy at a temperature");
    near(one.best_probability, 1 / mass, 1e-6, "the probability of the likeliest token");
  }
  for (int row = 0; row < rows; row++) means.push_back({logits[row].data(), out[row].data()});
  mean_embeddings<T>(model, means, 2);
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < width; i++) {
      double want = 0;
      for (int token = 0; token < vocab; token++) want += 1.5 * logits[row][token] * embedding[token][i];
      near(out[row][i], want, T::PER == 1 ? 2e-5 : 0.03, "a mean embedding");
    }
  Row none(size, NEVER);
  expect(refined(rules, none.data(), size, 0).drawn.token == -1 && none == Row(size), "a token where none is left");
}

void check_choices() {
  const Experts shapes[] = {{70, 9, 0, 0, 1, 1, 0, 0, 1},   {70, 9, 0, 0, 1, 1, 1, 1, 2.5f}, {64, 8, 0, 0, 8, 3, 0, 1, 1},
                            {256, 8, 0, 0, 8, 4, 1, 1, 2.5f}, {6, 6, 0, 0, 3, 3, 1, 0, 1},     {5, 1, 0, 0, 1, 1, 0, 0, 1}, {6, 2, 0, 0, 3, 2, 0, 0, 1}};
  for (const Experts& e : shapes)
    for (int seed = 0; seed < 40; seed++) {
      Row logits = random_rows(1, e.num, seed, 0.5f + seed % 5)[0], bias = seed % 2 ? random_rows(1, e.num, 100 + seed, 0.2f)[0] : Row();
      if (seed % 4 == 3) bias[seed % e.num] = bias[seed / 2 % e.num] = NEVER;
      for (float& x : logits)
        if (seed % 4 == 2 && !e.sigmoid) x = std::nearbyint(x);  // equals
      Row scores(round_up(e.num, COLUMNS)), room(2 * e.num), weights(e.per_token);
      std::copy(logits.begin(), logits.end(), scores.begin());
      std::vector<int32_t> chosen(e.per_token);
      choose(e, bias.empty() ? nullptr : bias.data(), scores.data(), room.data(), chosen.data(), weights.data());
      const std::vector<double> want = chosen_weights(e, logits, bias);
      expect(std::is_sorted(chosen.begin(), chosen.end()), "ascending experts");
      for (int i = 0; i < e.num; i++) {
        const auto at = std::find(chosen.begin(), chosen.end(), i);
        const double got = at == chosen.end() ? 0 : weights[at - chosen.begin()];
        near(got, want[i], 2e-6 * e.scale, "the weight of an expert");
      }
    }
}

// A call for which there is no memory at some point says so, and the next call of the same thread is as ever.
void check_shortage() {
  const Whole<Float32, float> whole(MIXED);
  Call call;
  call.add(nullptr, std::vector<int64_t>(70, 3), 0, 70);
  const std::vector<float> want = call.run(whole.model, 2);
  int num = 0;
  for (int wrong = 3; wrong; num++)
    std::thread([&] {  // which has no memory yet
      std::vector<float> out(want.size());
      blocks_left = num;
      wrong = call.code(whole.model, 2, out.data());
      blocks_left = ENOUGH;
      expect(wrong == 0 || wrong == 3, "the code of an error", wrong);
      if (num == 0) {
        std::vector<float> row = whole.final_weight;
        blocks_left = 0;
        expect(daguerre_logits(&whole.model, row.data(), 1, nullptr, out.data(), 2) == 3, "logits without memory");
        blocks_left = ENOUGH;
      }
      expect(call.run(whole.model, 2) == want, "a call after one without memory");
    }).join();
  expect(num > 4, "how often memory is needed", num);
}

int main() {
  check_functions();
  check_conversions();
  for (const auto& size : {std::pair<int, int>{5, 3}, {48, 64}, {130, 70}, {300, 200}}) {
    check_products<Float32>(size.first, size.second);
    check_products<Bfloat16>(size.first, size.second);
    check_products<Int8>(size.first, size.second);
    check_grouped(size.first, size.second);
  }
  check_all_blocks();
  for (bool masked : {false, true})
    for (const auto& keys : {std::pair<int, int>{0, 3}, {5, 0}, {63, 9}, {64, 70}, {150, 40}})
      for (int head : {6, 16, 72})
        for (bool codes : {false, true}) {
          check_attention<float>(head, keys.first, keys.second, masked, codes);
          check_attention<uint16_t>(head, keys.first, keys.second, masked, codes);
        }
  check_draws(70, 40);
  check_draws(3000, 12);  // of which few can be among the best
  check_choices();
  check_refinements<Float32>();
  check_refinements<Bfloat16>();
  check_shortage();
  for (Shape shape : {PLAIN, CLASSIC, MIXED}) {
    check_forward<Float32, float>(shape, 1e-5);
    check_forward<Bfloat16, uint16_t>(shape, 0.02);
    check_forward<Int8, float>(shape, 0.02);
    check_forward<Int4, uint16_t>(shape, 0.03);
  }
  std::printf("equal, %d lanes\n", LANES);
}
