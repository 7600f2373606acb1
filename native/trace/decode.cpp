// Python module maya.trace._decoder: a trace file as arrays, and repetition in long sequences.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "code_hash.h"
#include "format.h"

namespace nb = nanobind;

namespace maya::trace {
namespace {

struct KindInfo {
  const char* name = nullptr;
  const char* fields = nullptr;
  int num_fields = 0;
};

constexpr int count_fields(std::string_view fields) {
  if (fields.empty()) return 0;
  int count = 1;
  for (char c : fields) count += c == ',';
  return count;
}

constexpr std::array<KindInfo, 256> kKinds = [] {
  std::array<KindInfo, 256> kinds{};
#define X(number, kind, fields) kinds[number] = {#kind, fields, count_fields(fields)};
  MAYA_TRACE_RECORDS(X)
#undef X
  return kinds;
}();

class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0) {
      const std::string reason = std::strerror(errno);
      if (descriptor >= 0) ::close(descriptor);
      throw nb::value_error(("cannot be opened: " + reason).c_str());
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) {
      void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (address != MAP_FAILED) data_ = static_cast<const uint8_t*>(address);
    }
    ::close(descriptor);
    if (size_ > 0 && data_ == nullptr) throw nb::value_error("cannot be mapped into memory");
    if (data_ != nullptr) ::madvise(const_cast<uint8_t*>(data_), size_, MADV_SEQUENTIAL);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Reads one zigzag LEB128 varint; returns nullptr when it does not end within [cursor, end) or has
// more than the 64 bits of a value.
inline const uint8_t* read_varint(const uint8_t* cursor, const uint8_t* end, int64_t* value) {
  uint64_t bits = 0;
  for (int shift = 0; cursor < end && shift < 64; shift += 7) {
    const uint8_t byte = *cursor++;
    bits |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *value = static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1);
      return cursor;
    }
  }
  return nullptr;
}

struct Texts {
  std::vector<std::pair<int64_t, std::string_view>> entries;  // views into the mapping

  nb::dict to_python() const {
    nb::dict result;
    for (const auto& [id, text] : entries) {
      // Names come from the traced program: bytes that are not UTF-8 are kept visible, not refused.
      PyObject* decoded =
          PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
      if (decoded == nullptr) throw nb::python_error();
      result[nb::int_(id)] = nb::steal(decoded);
    }
    return result;
  }
};

// An array that numpy will own. Nothing is written before the decoder does.
template <typename T>
class Column {
 public:
  void allocate(size_t size) { values_ = std::make_unique_for_overwrite<T[]>(size); }
  T* data() { return values_.get(); }

  // Hands the first num_rows rows over to numpy without a copy.
  nb::object to_array(size_t num_rows, size_t num_columns = 0) {
    T* values = values_.release();
    nb::capsule owner(values, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
    if (num_columns == 0) return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values, {num_rows}, owner));
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(values, {num_rows, num_columns}, owner));
  }

 private:
  std::unique_ptr<T[]> values_;
};

struct Decoded {
  size_t num_rows_total = 0;  // records without the definitions of strings and threads
  Column<uint8_t> kind;
  Column<uint16_t> thread;
  Column<uint8_t> flags;
  Column<int64_t> gap_ns;
  Column<int32_t> row;
  std::array<Column<int64_t>, 256> tables;
  std::array<size_t, 256> num_rows{};
  Texts strings;
  Texts threads;
  bool complete = false;
  size_t num_records = 0;  // with the definitions of strings and threads
  size_t stop_offset = 0;  // first byte that is not part of a whole record
  std::string error;       // empty when all whole records could be read
};

bool is_definition(uint8_t kind) {
  return kind == static_cast<uint8_t>(Kind::string) || kind == static_cast<uint8_t>(Kind::thread);
}

// Hops over the headers: finds where the whole records end and how many there are of each kind, so that
// every array is allocated once in its final size.
void count_records(const Mapping& file, size_t first, Decoded* out) {
  const uint8_t* const begin = file.data();
  const uint8_t* const end = begin + file.size();
  const uint8_t* cursor = begin + first;
  while (static_cast<size_t>(end - cursor) >= sizeof(RecordHeader)) {
    RecordHeader header;
    std::memcpy(&header, cursor, sizeof header);
    if (header.kind == 0) break;
    if (kKinds[header.kind].name == nullptr) {
      out->error = "has a record of unknown kind " + std::to_string(header.kind);
      break;
    }
    const size_t bytes = sizeof header + header.payload_bytes;
    if (static_cast<size_t>(end - cursor) < bytes) break;
    cursor += bytes;
    ++out->num_records;
    ++out->num_rows[header.kind];
    if (!is_definition(header.kind)) ++out->num_rows_total;
    if (header.kind == static_cast<uint8_t>(Kind::end)) {
      out->complete = true;
      break;
    }
  }
  out->stop_offset = static_cast<size_t>(cursor - begin);
}

void decode_records(const Mapping& file, size_t first, Decoded* out) {
  count_records(file, first, out);
  if (!out->error.empty()) return;
  out->kind.allocate(out->num_rows_total);
  out->thread.allocate(out->num_rows_total);
  out->flags.allocate(out->num_rows_total);
  out->gap_ns.allocate(out->num_rows_total);
  out->row.allocate(out->num_rows_total);
  std::array<int64_t*, 256> next{};  // where the next row of each kind goes
  std::array<int32_t, 256> row{};
  for (size_t number = 0; number < next.size(); ++number) {
    if (kKinds[number].num_fields == 0 || is_definition(static_cast<uint8_t>(number))) continue;
    out->tables[number].allocate(out->num_rows[number] * static_cast<size_t>(kKinds[number].num_fields));
    next[number] = out->tables[number].data();
  }

  const uint8_t* cursor = file.data() + first;
  const uint8_t* const stop = file.data() + out->stop_offset;
  size_t position = 0;
  for (size_t record = 0; cursor != stop; ++record) {
    RecordHeader header;
    std::memcpy(&header, cursor, sizeof header);
    const KindInfo& info = kKinds[header.kind];
    const uint8_t* payload = cursor + sizeof header;
    const uint8_t* const payload_end = payload + header.payload_bytes;
    if (is_definition(header.kind)) {
      int64_t id = 0;
      payload = read_varint(payload, payload_end, &id);
      // Ids of texts are handed out densely, and readers index by them.
      const bool is_string = header.kind == static_cast<uint8_t>(Kind::string);
      if (is_string && (id < 0 || id > static_cast<int64_t>(out->num_rows[header.kind]))) payload = nullptr;
      if (payload != nullptr) {
        Texts& texts = is_string ? out->strings : out->threads;
        texts.entries.emplace_back(id, std::string_view(reinterpret_cast<const char*>(payload),
                                                        static_cast<size_t>(payload_end - payload)));
        payload = payload_end;
      }
    } else {
      int64_t* field = next[header.kind];
      int64_t* const row_end = field + info.num_fields;
      while (field != row_end && payload != payload_end) {
        payload = read_varint(payload, payload_end, field++);
        if (payload == nullptr) break;
      }
      while (field != row_end) *field++ = kMissing;
      next[header.kind] = row_end;
      out->kind.data()[position] = header.kind;
      out->thread.data()[position] = header.thread;
      out->flags.data()[position] = header.flags;
      out->gap_ns.data()[position] = header.gap_ns;
      out->row.data()[position] = row[header.kind]++;
      ++position;
    }
    if (payload != payload_end) {
      out->error = std::string("has a damaged record of kind ") + info.name;
      out->num_records = record;
      out->stop_offset = static_cast<size_t>(cursor - file.data());
      return;
    }
    cursor = payload_end;
  }
}

nb::dict decode(nb::str path_text) {
  const std::string path = path_text.c_str();
  const Mapping file(path);
  FileHeader header;
  if (file.size() < sizeof header) {
    throw nb::value_error("ends within its header, so nothing was recorded");
  }
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) throw nb::value_error("is not a trace file");
  if (header.version > kVersion) {
    throw nb::value_error(("has trace format version " + std::to_string(header.version) +
                           ", and this Maya reads up to version " + std::to_string(kVersion))
                              .c_str());
  }
  if (header.header_bytes < sizeof header || header.header_bytes > file.size()) {
    throw nb::value_error("has a damaged header");
  }

  Decoded decoded;
  {
    nb::gil_scoped_release release;
    decode_records(file, header.header_bytes, &decoded);
  }
  if (!decoded.error.empty()) {
    throw nb::value_error((decoded.error + " (record " + std::to_string(decoded.num_records) +
                           ", byte offset " + std::to_string(decoded.stop_offset) + ")")
                              .c_str());
  }

  nb::dict tables;
  for (size_t number = 0; number < kKinds.size(); ++number) {
    const KindInfo& info = kKinds[number];
    const size_t num_rows = decoded.num_rows[number];
    if (info.num_fields == 0 || num_rows == 0 || is_definition(static_cast<uint8_t>(number))) continue;
    tables[info.name] = decoded.tables[number].to_array(num_rows, static_cast<size_t>(info.num_fields));
  }
  const size_t size = decoded.num_rows_total;
  nb::dict result;
  result["version"] = header.version;
  result["process_id"] = header.process_id;
  result["rank"] = header.rank;
  result["start_unix_ns"] = header.start_unix_ns;
  result["kind"] = decoded.kind.to_array(size);
  result["thread"] = decoded.thread.to_array(size);
  result["flags"] = decoded.flags.to_array(size);
  result["gap_ns"] = decoded.gap_ns.to_array(size);
  result["row"] = decoded.row.to_array(size);
  result["tables"] = tables;
  result["strings"] = decoded.strings.to_python();
  result["threads"] = decoded.threads.to_python();
  result["complete"] = decoded.complete;
  result["num_records"] = decoded.num_records;
  result["stop_offset"] = decoded.stop_offset;
  return result;
}

// The period whose repetition covers the longest stretch at the end of `values`, the shortest one
// of several: (period, covered length), or (0, 0) when nothing repeats at least once.
//
// The Z-function of the reversed sequence gives, for every shift p, how far the tail agrees with itself p
// places earlier: z[p] >= p means the last p values occur twice in a row, and p + z[p] values
// have that period. (Gusfield, Algorithms on Strings, Trees and Sequences, 1.3-1.4.)
nb::tuple repeated_suffix(nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> values) {
  const size_t n = values.shape(0);
  const uint64_t* data = values.data();
  const auto at = [&](size_t index) { return data[n - 1 - index]; };
  size_t best_period = 0, best_covered = 0;
  std::vector<size_t> z(n, 0);
  for (size_t i = 1, left = 0, right = 0; i < n; ++i) {
    size_t length = i < right ? std::min(right - i, z[i - left]) : 0;
    while (i + length < n && at(length) == at(i + length)) ++length;
    z[i] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    if (length >= i && i + length > best_covered) {
      best_period = i;
      best_covered = i + length;
    }
  }
  return nb::make_tuple(best_period, best_covered);
}

// As a signed number, which `code` records hold.
int64_t hash_of_code(nb::bytes code) { return static_cast<int64_t>(code_hash(code.c_str(), code.size())); }

nb::tuple split_fields(std::string_view fields) {
  nb::list names;
  while (!fields.empty()) {
    const size_t comma = fields.find(',');
    const std::string_view name = fields.substr(0, comma);
    names.append(nb::str(name.data(), name.size()));
    fields = comma == std::string_view::npos ? std::string_view() : fields.substr(comma + 1);
  }
  return nb::tuple(names);
}

}  // namespace
}  // namespace maya::trace

NB_MODULE(_decoder, module) {
  using namespace maya::trace;
  nb::dict kinds, fields;
  for (size_t number = 0; number < kKinds.size(); ++number) {
    if (kKinds[number].name == nullptr) continue;
    kinds[kKinds[number].name] = number;
    fields[kKinds[number].name] = split_fields(kKinds[number].fields);
  }
  module.attr("KINDS") = kinds;
  module.attr("FIELDS") = fields;
  nb::list collective_ops;
#define X(op) collective_ops.append(#op);
  MAYA_COLLECTIVE_OPS(X)
#undef X
  module.attr("COLLECTIVE_OPS") = nb::tuple(collective_ops);
  module.attr("MISSING") = kMissing;
  module.attr("VERSION") = kVersion;
  module.attr("MAGIC") = nb::bytes(kMagic, sizeof kMagic);
  module.attr("BLOCKED") = static_cast<int>(kBlocked);
  module.attr("FROM_GRAPH") = static_cast<int>(kFromGraph);
  module.attr("NOT_WORKLOAD") = static_cast<int>(kNotWorkload);
  module.def("decode", &decode, nb::arg("path"));
  module.def("code_hash", &hash_of_code, nb::arg("code"));
  module.def("repeated_suffix", &repeated_suffix, nb::arg("values"));
}
