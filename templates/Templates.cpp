#include "EmbeddedTemplates.h"
#include "tilewright/Templates.h"
#include <algorithm>
#include <vector>

namespace tilewright {

std::string_view templateText(std::string_view name) {
  for (size_t i = 0; i < embeddedTemplateCount; ++i)
    if (embeddedTemplateNames[i] == name) return embeddedTemplateTexts[i];
  return {};
}

std::span<const std::string_view> templateNames() { return {embeddedTemplateNames, embeddedTemplateCount}; }

namespace {

struct Assembly {
  std::string text;
  std::vector<std::string> seen;

  void add(const std::string &name) {
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return;
    seen.push_back(name);
    std::string_view source = templateText(name);
    if (source.empty()) {
      text += "#error \"no template file named " + name + "\"\n";
      return;
    }
    constexpr std::string_view include = "#include \"";
    std::string body;
    while (!source.empty()) {
      size_t end = std::min(source.find('\n'), source.size() - 1);
      std::string_view line = source.substr(0, end + 1);
      source.remove_prefix(end + 1);
      if (line.starts_with(include))
        add(std::string(line.substr(include.size(), line.find('"', include.size()) - include.size())));
      else if (!line.starts_with("#pragma once"))
        body += line;
    }
    text += body;
  }
};

} // namespace

std::string assembleTemplates(std::span<const std::string_view> names) {
  Assembly assembly;
  for (std::string_view name : names)
    assembly.add(std::string(name));
  return std::move(assembly.text);
}

} // namespace tilewright
