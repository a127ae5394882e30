// tests/unit/core/wire/xml.h: reads the XML that we write: elements, attributes, text; no
// declarations, comments or entities but &amp; &lt; &gt; &quot;.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::wire {

struct Xml {
  std::string name, text;
  std::map<std::string, std::string> attributes;
  std::vector<Xml> children;

  // Every element of that name, at any depth.
  void Find(std::string_view wanted, std::vector<const Xml*>* found) const {
    if (name == wanted) found->push_back(this);
    for (const Xml& child : children) child.Find(wanted, found);
  }
  std::vector<const Xml*> All(std::string_view wanted) const {
    std::vector<const Xml*> found;
    Find(wanted, &found);
    return found;
  }
  std::string Class() const {
    const auto found = attributes.find("class");
    return found == attributes.end() ? "" : found->second;
  }
};

// One element and nothing else; nothing if the text is not well formed.
class XmlReader {
 public:
  static std::optional<Xml> Read(std::string_view text) {
    XmlReader reader(text);
    Xml root;
    if (!reader.Element(&root)) return std::nullopt;
    reader.Blanks();
    if (!reader.rest_.empty()) return std::nullopt;
    return root;
  }

 private:
  explicit XmlReader(std::string_view text) : rest_(text) {}

  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void Blanks() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  std::string Until(std::string_view stops) {
    const size_t end = std::min(rest_.find_first_of(stops), rest_.size());
    std::string part(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return part;
  }
  bool Decode(const std::string& raw, std::string* text) {
    static const std::map<std::string, char> kEntities = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}};
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '&') {
        *text += raw[i];
        continue;
      }
      const size_t end = raw.find(';', i);
      if (end == std::string::npos) return false;
      const auto entity = kEntities.find(raw.substr(i + 1, end - i - 1));
      if (entity == kEntities.end()) return false;
      *text += entity->second;
      i = end;
    }
    return true;
  }
  bool Attributes(Xml* element) {
    for (Blanks(); !rest_.empty() && rest_[0] != '>' && rest_[0] != '/'; Blanks()) {
      const std::string name = Until("= \n>");
      std::string value;
      if (name.empty() || !Take("=\"") || !Decode(Until("\"<"), &value) || !Take("\""))
        return false;
      if (!element->attributes.emplace(name, value).second) return false;
    }
    return true;
  }
  bool Element(Xml* element) {
    if (!Take("<")) return false;
    element->name = Until(" \n/>");
    if (element->name.empty() || !Attributes(element)) return false;
    if (Take("/>")) return true;
    if (!Take(">")) return false;
    while (!rest_.empty()) {
      if (!Decode(Until("<"), &element->text)) return false;
      if (Take("</")) return Take(element->name) && Take(">");
      if (!Element(&element->children.emplace_back())) return false;
    }
    return false;
  }

  std::string_view rest_;
};

}  // namespace phalanx::wire
