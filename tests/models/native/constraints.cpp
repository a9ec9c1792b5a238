// What the library of constraints does with rows of logits, by one thread and by three: "equal" if both give the same.

#include <cstdio>
#include <random>

#include "likeliest.h"

using namespace daguerre;

constexpr int64_t ROWS = 7, CLASSES = 5, SIZE = 20'000;

template <class Logit> struct Given {
    vector<Logit> logits = vector<Logit>(ROWS * SIZE);
    vector<int32_t> of_token = vector<int32_t>(SIZE), order, end, segment, cls;
    vector<uint16_t> place;
    vector<int64_t> first_token{0}, first{0}, of_class{0}, starts{0};

    Given() {
        std::mt19937 random(1);
        std::normal_distribution<Logit> normal(0, 3);
        for (Logit &one : logits) one = normal(random);
        for (int32_t &one : of_token) one = int32_t(random() % (CLASSES + 1));
        vector<vector<int32_t>> numbers((SIZE + TILE - 1) / TILE);  // of the segments in each tile
        for (int32_t c = 0; c <= CLASSES; c++) {
            for (int64_t tile = 0; tile < int64_t(numbers.size()); tile++) {
                for (int64_t i = tile * TILE; i < std::min(SIZE, (tile + 1) * TILE); i++)
                    if (of_token[i] == c) order.push_back(int32_t(i));
                numbers[tile].push_back(int32_t(starts.size() - 1)), starts.push_back(order.size());
            }
            first_token.push_back(order.size()), of_class.push_back(starts.size() - 1);
        }
        first_token.pop_back();  // the last class is that of the tokens without one
        for (const vector<int32_t> &held : numbers) {
            for (int32_t number : held) {
                for (int64_t i = starts[number]; i < starts[number + 1]; i++) place.push_back(uint16_t(order[i] % TILE));
                end.push_back(place.size()), segment.push_back(number), cls.push_back(int32_t(number / numbers.size()));
            }
            first.push_back(end.size());
        }
        for (int32_t &one : of_token) one = one == CLASSES ? -1 : one;
    }
    Tiles tiles() const {
        return {place.data(), end.data(), segment.data(), cls.data(), first.data(), of_class.data(), int64_t(segment.size()), CLASSES, SIZE};
    }
};

template <class Logit> vector<double> made(const Given<Logit> &given, int32_t threads) {
    const Tiles tiles = given.tiles();
    const double temperatures[2] = {1.0, 0.7};
    vector<Logit> top(ROWS), most(ROWS * CLASSES);
    vector<double> sum(2 * ROWS * CLASSES), all(2 * ROWS), parts(2 * ROWS * tiles.size), shares(ROWS * CLASSES), u(ROWS, 0.4);
    const Sums<Logit> sums{temperatures, 2, top.data(), most.data(), sum.data(), all.data(), parts.data()};
    weigh_classes(given.logits.data(), ROWS, tiles, sums, threads);

    vector<int64_t> chosen(ROWS, 3), firsts(ROWS), row(ROWS), begin(ROWS, given.first_token[3]), until(ROWS, given.first_token[4]);
    vector<int64_t> part(ROWS, given.of_class[3]), number(ROWS, given.of_class[4] - given.of_class[3]), drawn(ROWS);
    first_tokens(given.logits.data(), ROWS, SIZE, most.data(), CLASSES, given.of_token.data(), chosen.data(), firsts.data(), threads);
    for (int64_t i = 0; i < ROWS; i++) row[i] = i, number[i] *= i % 2;
    const Draws draws{given.order.data(), row.data(), begin.data(), until.data(), part.data(), number.data(),
                      u.data(), parts.data(), given.starts.data(), ROWS, SIZE, tiles.size};
    draw_tokens(given.logits.data(), top.data(), 1.0, draws, drawn.data(), threads);

    vector<double> factor(ROWS * CLASSES), cut(ROWS * CLASSES);
    for (int64_t i = 0; i < ROWS * CLASSES; i++) factor[i] = std::log(sum[i] / all[i / CLASSES]) - std::log(sum[i]) - double(top[i / CLASSES]);
    const Classes on{given.of_token.data(), given.order.data(), given.first_token.data(), CLASSES, SIZE};
    auto kept = keep_likeliest(given.logits.data(), ROWS, on, factor.data(), 1.0, top.data(), -14.0, 0.8, shares.data(), cut.data(), threads);

    vector<double> out;
    auto add = [&](const auto &held) { out.insert(out.end(), held.begin(), held.end()); };
    add(top), add(most), add(sum), add(all), add(parts), add(firsts), add(drawn), add(shares), add(cut);
    for (const Kept &one : *kept)
        for (int64_t i = 0; i < one.size; i++) out.insert(out.end(), {double(one.token[i]), double(one.cls[i]), one.prob[i]});
    delete kept;
    return out;
}

template <class Logit> bool equal() {
    const Given<Logit> given;
    return made(given, 1) == made(given, 3);
}

int main() { std::puts(equal<float>() && equal<double>() ? "equal" : "unequal"); }
