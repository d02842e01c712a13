// The table that EmbedTemplates.cmake generates. Private to this folder.
#pragma once

#include <cstddef>
#include <string_view>

namespace tilewright {

extern const std::string_view embeddedTemplateNames[]; ///< Sorted.
extern const std::string_view embeddedTemplateTexts[];
extern const size_t embeddedTemplateCount;

} // namespace tilewright
