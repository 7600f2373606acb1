// Texts about collectives that do not come together.
#pragma once

#include <string>
#include <vector>

#include "communicator.h"
#include "exchange.h"

namespace maya::text {

// Whether two participants' calls fit together as far as NCCL needs it: type and operator only where data are
// reduced, else the number of bytes.
bool agree(const exchange::Signature& left, const exchange::Signature& right);

// E.g. "all_reduce of 4 x float32 (sum), number 17 on its communicator".
std::string describe(const ncclComm& comm, const exchange::Key& key, const exchange::Signature& signature);

// The same, with the call site where this rank was the first to arrive.
std::string describe(const ncclComm& comm, const exchange::Rendezvous& rendezvous);

std::string missing_members(const ncclComm& comm, const std::string& action, const std::vector<int>& missing);

std::string disagreement(const ncclComm& comm, const exchange::Rendezvous& rendezvous,
                         const exchange::Signature& own, const std::string& own_site);

}  // namespace maya::text
