// A driver to begin with: it speaks the protocol (PROTOCOL.md) and implements nothing yet.
//
// Fill in one method after the other and claim it in hello(); what is not claimed is not tested.

#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

using Json = nlohmann::json;

namespace {

// The specification asks for a refusal: a code of SPEC section 18, a place or "", and a sentence.
struct Refusal : std::runtime_error {
  Refusal(std::string code_, std::string at_, const std::string& sentence)
      : std::runtime_error(sentence), code(std::move(code_)), at(std::move(at_)) {}
  std::string code, at;
};

// What was asked for is not implemented, and hello() does not claim it.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Json hello(const Json&) {
  return {
      {"protocol", 1},
      {"implementation", {{"name", "template-cpp"}, {"version", "0"}, {"language", "c++"}}},
      // Add "validator", "writer" and "rewriter" one by one.
      {"roles", {"reader"}},
      {"format_versions", {0}},
      {"storages", {"plain", "packed"}},
      {"read_features", Json::array()},
      {"write_features", Json::array()},
      {"compressors", Json::array()},
      {"dtypes", {"float32"}},
      // Reshard needs "core"; name "views", "buffers", "ragged" and "reductions" as you get to them.
      {"profiles", Json::array()},
  };
}

// params: path, level. Returns {"problems": [{"code": "UCP-E-...", "at": "ucp.json#/member"}]}; [] if it is good.
Json validate(const Json&) { throw Unsupported("validate"); }

// params: path. The first method to write: read ucp.json, then the index parts, then the state document.
Json inspect(const Json&) { throw Unsupported("inspect"); }

// params: mesh, steps, shape, and place where there is one. No checkpoint is involved.
Json lower(const Json&) { throw Unsupported("lower"); }

// params: path, atom, slot, and out, or box and out, or mesh, steps and outs. Writes raw elements to the files.
Json read(const Json&) { throw Unsupported("read"); }

// params: path, blob, out.
Json read_blob(const Json&) { throw Unsupported("read-blob"); }

// params: path, storage, chunk_bytes, atoms and more. Returns {"digest": the root digest}.
Json write(const Json&) { throw Unsupported("write"); }

// params: source, path, storage. Returns {"digest": the root digest}.
Json rewrite(const Json&) { throw Unsupported("rewrite"); }

// params: path of an update log, maybe checkpoint and more. Asked where "read_features" has "update-log".
Json log(const Json&) { throw Unsupported("log"); }

// params: path, first_step, after and more. Asked where "writes_features" has "update-log".
// Returns {"log": the id of the log, "epoch": the number}, and keeps what write_batch goes on with.
Json begin_epoch(const Json&) { throw Unsupported("begin-epoch"); }

// params: path, epoch, rank, steps, values. Returns {"durable_step": the state behind the last step}.
Json write_batch(const Json&) { throw Unsupported("write-batch"); }

Json nothing(const Json&) { return Json::object(); }

const std::map<std::string, std::function<Json(const Json&)>> methods = {
    {"hello", hello},         {"validate", validate},   {"inspect", inspect}, {"lower", lower},
    {"read", read},           {"read-blob", read_blob}, {"write", write},     {"rewrite", rewrite},
    {"log", log},             {"begin-epoch", begin_epoch}, {"write-batch", write_batch},
    {"reset", nothing},       {"shutdown", nothing},
};

Json answer(const std::string& method, const Json& params) {
  try {
    return {{"result", methods.at(method)(params)}};
  } catch (const Refusal& refusal) {
    return {{"error", {{"code", refusal.code}, {"at", refusal.at}, {"detail", refusal.what()}}}};
  } catch (const Unsupported& gap) {
    return {{"unsupported", {{"feature", gap.what()}}}};
  } catch (const std::exception& defect) {
    return {{"internal", {{"detail", defect.what()}}}};
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    const auto method = request.at("method").get<std::string>();
    Json reply = answer(method, request.at("params"));
    reply["id"] = request.at("id");
    std::cout << reply.dump() << std::endl;  // which flushes
    if (method == "shutdown") return 0;
  }
  return 0;
}
