// SPDX-License-Identifier: Apache-2.0
// A TOML file by toml11, for config.c. Only the operator's own file is parsed, before the server
// listens; it is the one part in C++, since no maintained TOML parser in C is packaged by Debian 12.
extern "C" {
#include "serve/config.h"
}

#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <toml.hpp>

namespace {

struct reading {
    config_setter *set;
    void *data;
};

// Negative if a value is refused. The setter has said why.
int give(
    const reading &to, const std::string &name, const toml::value &value, bool is_member = false) {
    const long line = static_cast<long>(value.location().line());

    switch (value.type()) {
    case toml::value_t::string:
        if (value.as_string().str.find('\0') != std::string::npos)
            break;
        return to.set(name.c_str(), is_member ? 'S' : 's', value.as_string().str.c_str(), line, to.data);
    case toml::value_t::integer:
        return to.set(name.c_str(), is_member ? 'I' : 'i', std::to_string(value.as_integer()).c_str(), line, to.data);
    case toml::value_t::boolean:
        return to.set(name.c_str(), is_member ? 'B' : 'b', value.as_boolean() ? "true" : "false", line, to.data);
    case toml::value_t::array:
        for (const auto &member : value.as_array()) {
            if (member.is_table() || member.is_array())
                return to.set(name.c_str(), '?', "", line, to.data);
            if (give(to, name, member, true) < 0)
                return -1;
        }
        return 0;
    case toml::value_t::table:
        for (const auto &member : value.as_table())
            if (give(to, name.empty() ? member.first : name + "-" + member.first, member.second) <
                0)
                return -1;
        return 0;
    default:
        break;
    }
    // No option has a value of this type, and the setter says so.
    return to.set(name.c_str(), '?', "", line, to.data);
}

} // namespace

extern "C" int config_parse_toml(const char *text, size_t length, const char *path,
    config_setter *set, void *data, char **ret_why) {
    *ret_why = nullptr;
    try {
        std::istringstream stream(std::string(text, length));

        return give({set, data}, "", toml::parse(stream, path));
    } catch (const std::exception &problem) {
        *ret_why = strdup(problem.what());
        return -1;
    }
}
