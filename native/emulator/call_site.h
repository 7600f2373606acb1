// Where in the program a call comes from.
#pragma once

#include <string>

namespace maya {

// "train.py:12 in main": the innermost frame of Python outside of PyTorch on this thread; empty where there
// is none. Takes Python's lock, so no lock of the emulator may be held.
std::string call_site();

// " at train.py:12 in main", or nothing.
std::string at_call_site(const std::string& site);

// File name of the innermost library on the stack that is not the emulator.
std::string calling_library();

}  // namespace maya
