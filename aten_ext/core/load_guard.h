// What happens around registration, once, when the library is loaded.
#pragma once

namespace aten_ext {

// Decides once whether entries are registered with the dispatcher: not under another torch
// major.minor than this library was compiled for, not with ATEN_EXT=0, not when an environment
// variable makes no sense. The reason is left in registry().state->error.
bool may_register();

// Whether this library may define operators of its own (those behind aten_ext.explain).
// True with ATEN_EXT=0, false after an error.
bool may_define();

// The dispatcher warns about each kernel that is replaced, from C++, past Python's filters, and only
// once for the whole process. Between these two calls the warning goes nowhere and torch's once-flag
// is not used up, so that somebody else's warning still appears. They return true, to be
// initialisers of static objects.
bool silence_warnings();
bool restore_warnings();

}  // namespace aten_ext
