#include "watch/signature.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdio>
#include <string_view>

namespace aten_ext {
namespace {

constexpr size_t kShownWhole = 4;
constexpr size_t kShownFirst = 3;

// Python's names: "float32", not "Float".
std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

void append_numbers(std::string& text, at::IntArrayRef numbers, char open, char close) {
  text += open;
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += std::to_string(numbers[i]);
  }
  text += close;
}

void append_tensor(std::string& text, const at::Tensor& t) {
  if (!t.defined()) {
    text += "undefined";
    return;
  }
  text += dtype_name(t.scalar_type());
  append_numbers(text, t.sizes(), '[', ']');
  if (t.layout() != at::kStrided) {
    text += " not strided";
  } else if (!t.is_contiguous()) {
    append_numbers(text, t.strides(), '(', ')');
  }
  if (!t.device().is_cpu()) {
    text += '@' + t.device().str();
  }
}

// Returns false, and appends nothing, for what a signature leaves out.
bool append_value(std::string& text, const c10::IValue& value);

// FNV-1a.
uint64_t hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) {
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  return h;
}

template <class AppendElement>
void append_list(std::string& text, size_t size, const AppendElement& append_element) {
  std::string all;
  size_t shown = 0;
  for (size_t i = 0; i < size; ++i) {
    all += i == 0 ? "" : ", ";
    append_element(all, i);
    if (i + 1 == kShownFirst) {
      shown = all.size();
    }
  }
  if (size <= kShownWhole) {
    text += '[' + all + ']';
    return;
  }
  char tail[64];
  std::snprintf(tail, sizeof(tail), ", …] x%zu #%08x", size, static_cast<unsigned>(hash(all) >> 32));
  text += '[' + all.substr(0, shown) + tail;
}

bool append_value(std::string& text, const c10::IValue& value) {
  if (value.isTensor()) {
    append_tensor(text, value.toTensor());
  } else if (value.isTensorList()) {
    const c10::List<at::Tensor> list = value.toTensorList();
    append_list(text, list.size(), [&](std::string& out, size_t i) { append_tensor(out, list.get(i)); });
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    append_list(text, list.size(), [&](std::string& out, size_t i) {
      if (!append_value(out, list[i])) {
        out += list[i].isNone() ? "None" : "float";
      }
    });
  } else if (value.isInt()) {
    text += std::to_string(value.toInt());
  } else if (value.isBool()) {
    text += value.toBool() ? "True" : "False";
  } else if (value.isString()) {
    text += '\'' + value.toStringRef() + '\'';
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string signature(const std::vector<c10::IValue>& arguments, const char* const* names) {
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string value;
    if (append_value(value, arguments[i])) {
      text += text.empty() ? "" : ", ";
      text += std::string(names[i]) + '=' + value;
    }
  }
  return text;
}

}  // namespace aten_ext
