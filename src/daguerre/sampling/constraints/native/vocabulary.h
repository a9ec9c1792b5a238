// A vocabulary as a trie over groups of bytes, which automata over tokens are made of.

#pragma once

#include <cctype>
#include <numeric>

#include "dfa.h"

namespace daguerre {

// The bytes in at most 64 groups, each a range: letters, digits, and others that automata of text seldom tell apart.
struct Groups {
    uint8_t of_byte[256];
    int first[65], number = 0;  // the bytes of group g are first[g] to first[g + 1]

    Groups() {
        auto begins = [](int byte) {  // whether a byte begins a group; others are in that of the byte before
            constexpr int SINGLE[] = {'\t', '\n', 0x0b, '\r', 0x0e, 'A', 'a', 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xc2, 0xe0, 0xe1, 0xed, 0xee, 0xf0, 0xf1, 0xf4, 0xf5};
            bool special = byte >= ' ' && byte < 0x7f && !std::isalnum(byte);
            return !byte || special || byte == '0' || std::find(std::begin(SINGLE), std::end(SINGLE), byte) != std::end(SINGLE);
        };
        for (int byte = 0; byte < 256; byte++) {
            if (begins(byte)) first[number++] = byte;
            of_byte[byte] = number - 1;
        }
        first[number] = 256;
    }
    static const Groups &of() {
        static const Groups groups;
        return groups;
    }
};

// The tokens of a vocabulary as a trie. A node is the text of some tokens, or the beginning of others. The nodes below one
// lie side by side: most of them are looked at and left, and would each be waited for elsewhere.
struct Vocabulary {
    struct Node {
        uint64_t below = 0;              // the groups of the bytes of all nodes below
        int32_t first = 0;               // the first of those that are one byte longer
        int32_t first_token, end_token;  // the tokens that begin with this text, in the order of `tokens`
        int32_t behind_own;              // the first of them that is longer
        int32_t lowest = INT32_MAX;      // of all of them
        int16_t number = 0;              // of nodes that are one byte longer
        uint8_t byte;
    };
    vector<Node> nodes;      // the first is the empty text
    vector<int32_t> tokens;  // in the order of their texts
    int32_t size = 0;

    Vocabulary(const uint8_t *text, const int64_t *offsets, const int64_t *lengths, int32_t number) : size(number) {
        vector<int32_t> order;
        for (int32_t t = 0; t < number; t++)
            if (lengths[t]) order.push_back(t);
        auto compare = [&](int32_t a, int32_t b) {
            int held = std::memcmp(text + offsets[a], text + offsets[b], std::min(lengths[a], lengths[b]));
            return held ? held < 0 : lengths[a] != lengths[b] ? lengths[a] < lengths[b] : a < b;
        };
        std::sort(order.begin(), order.end(), compare);
        vector<Node> sorted{{}};      // in the order of a search by depth
        vector<int32_t> behind{0};    // the first node there that does not begin with this one's text
        vector<int32_t> path{0};      // the nodes of the text of token `before`
        int32_t before = -1;
        auto leave = [&](size_t depth) {
            for (; path.size() > depth; path.pop_back()) {
                behind[path.back()] = sorted.size();
                sorted[path.back()].end_token = tokens.size();
            }
        };
        for (int32_t t : order) {
            int64_t common = 0;
            const uint8_t *own = text + offsets[t];
            if (before >= 0) {
                const uint8_t *other = text + offsets[before];
                int64_t most = std::min(lengths[t], lengths[before]);
                while (common < most && own[common] == other[common]) common++;
            }
            leave(common + 1);
            for (int64_t i = common; i < lengths[t]; i++) {
                sorted[path.back()].number++;
                path.push_back(sorted.size());
                sorted.push_back({}), behind.push_back(0);
                sorted.back().byte = own[i];
                sorted.back().first_token = sorted.back().behind_own = tokens.size();
            }
            uint64_t below = 0;
            for (int64_t i = lengths[t]; i >= 0; below |= i ? 1ull << Groups::of().of_byte[own[i - 1]] : 0, i--) {
                Node &node = sorted[path[i]];
                node.lowest = std::min(node.lowest, t), node.below |= below;
            }
            tokens.push_back(t);
            sorted[path.back()].behind_own = tokens.size();
            before = t;
        }
        leave(0);
        sorted[0].first_token = 0;
        nodes.reserve(sorted.size());
        nodes.push_back(sorted[0]);
        vector<int32_t> place(sorted.size(), 0);
        for (size_t at = 0; at < sorted.size(); at++) {
            nodes[place[at]].first = nodes.size();
            for (int32_t next = at + 1; next < behind[at]; next = behind[next]) {
                place[next] = nodes.size();
                nodes.push_back(sorted[next]);
            }
        }
    }
};

}  // namespace daguerre
