#include "tests/bench/heartbeats/nodes.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "coordinator/wire/session_codec.h"
#include "tests/support/files.h"
#include "transport/openssl.h"

namespace phalanx::coordinator {
namespace {

using transport::Bio;
using transport::Certificate;
using transport::Key;

std::string PemOf(BIO* bio) {
  char* bytes = nullptr;
  const int64_t size = BIO_get_mem_data(bio, &bytes);
  return std::string(bytes, static_cast<size_t>(size));
}

void AddExtension(X509* certificate, int number, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, number, value.c_str());
  support::Require(extension != nullptr, absl::StrCat("no such extension: ", value));
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

void RaiseDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // Past the name, which may hold anything: utime and stime are words 14 and 15 of the line.
  const std::vector<std::string> words = absl::StrSplit(line.substr(line.rfind(')') + 2), ' ');
  return (std::stod(words.at(11)) + std::stod(words.at(12))) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

struct NodeCertificates::Keys {
  Key authority, node;
  Certificate issuer;
  std::string roots, node_pem;
};

NodeCertificates::NodeCertificates(const support::Authority& authority)
    : keys_(std::make_unique<Keys>()) {
  keys_->roots = support::ReadText(authority.folder() + "/ca.pem");
  const std::string secret = support::ReadText(authority.folder() + "/ca-key.pem");
  const Bio roots(BIO_new_mem_buf(keys_->roots.data(), static_cast<int>(keys_->roots.size())));
  const Bio key(BIO_new_mem_buf(secret.data(), static_cast<int>(secret.size())));
  keys_->issuer.reset(PEM_read_bio_X509(roots.get(), nullptr, nullptr, nullptr));
  keys_->authority.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
  keys_->node.reset(EVP_EC_gen("P-256"));
  support::Require(
      keys_->issuer != nullptr && keys_->authority != nullptr && keys_->node != nullptr,
      "the authority cannot be read");
  const Bio out(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(out.get(), keys_->node.get(), nullptr, nullptr, 0, nullptr,
                                nullptr);
  keys_->node_pem = PemOf(out.get());
}

NodeCertificates::~NodeCertificates() = default;

std::shared_ptr<grpc::ChannelCredentials> NodeCertificates::Of(const std::string& node) {
  const Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate.get()), ++serial_);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 86400);
  X509_set_pubkey(certificate.get(), keys_->node.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(keys_->issuer.get()));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(node.c_str()), -1, -1, 0);
  AddExtension(certificate.get(), NID_subject_alt_name, absl::StrCat("URI:phalanx:worker/", node));
  AddExtension(certificate.get(), NID_ext_key_usage, "clientAuth");
  support::Require(X509_sign(certificate.get(), keys_->authority.get(), EVP_sha256()) > 0,
                   "a certificate cannot be signed");
  const Bio out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(out.get(), certificate.get());
  return grpc::SslCredentials({.pem_root_certs = keys_->roots,
                               .pem_private_key = keys_->node_pem,
                               .pem_cert_chain = PemOf(out.get())});
}

CoordinatorProcess::CoordinatorProcess(const std::vector<std::string>& flags,
                                       const std::string& folder)
    : folder_(folder.empty() ? support::MakeFolder("nodes") : folder) {
  RaiseDescriptors();
  const std::string ready = folder_ + "/ready.json", log = folder_ + "/log";
  std::vector<std::string> argv = {support::Program("phalanx-coordinator"),
                                   "--store",
                                   folder_ + "/store",
                                   "--listen",
                                   "127.0.0.1:0",
                                   "--http",
                                   "127.0.0.1:0",
                                   "--ready-file",
                                   ready};
  argv.insert(argv.end(), flags.begin(), flags.end());
  process_ = std::make_unique<support::Process>(argv, support::NewMark(), log, log);
  support::AwaitFile(ready, *process_);
  const std::vector<std::string> parts = absl::StrSplit(support::ReadText(ready), '"');
  address_ = parts.at(3);
  http_address_ = parts.at(7);
}

CoordinatorProcess::~CoordinatorProcess() {
  process_.reset();
  std::filesystem::remove_all(folder_);
}

grpc::ChannelArguments OwnConnection() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

std::unique_ptr<v1::JobService::Stub> ConnectReader(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments = OwnConnection();
  arguments.SetMaxReceiveMessageSize(-1);
  return v1::JobService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
}

v1::SubmitJobRequest SubmitOf(const std::string& text) {
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(text);
  request.mutable_document()->set_directory("/tmp");
  return request;
}

int64_t Submit(v1::JobService::Stub& jobs, const std::string& text) {
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = jobs.SubmitJob(&context, SubmitOf(text), &response);
  support::Require(status.ok(), status.error_message());
  return response.job().id();
}

Node::Node(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
           v1::WorkerHello hello) {
  stub_ = v1::WorkerService::NewStub(
      grpc::CreateCustomChannel(address, std::move(credentials), OwnConnection()));
  stream_ = stub_->OpenSession(&context_);
  v1::OpenSessionRequest request;
  *request.mutable_hello() = std::move(hello);
  v1::OpenSessionResponse welcome;
  support::Require(stream_->Write(request) && stream_->Read(&welcome) && welcome.has_welcome(),
                   "no welcome");
}

void Node::Heartbeat() {
  v1::OpenSessionRequest request;
  request.mutable_heartbeat();
  Write(request);
}

std::optional<v1::Command> Node::Read() {
  v1::OpenSessionResponse response;
  while (stream_->Read(&response)) {
    if (response.has_command()) return std::move(*response.mutable_command());
  }
  return std::nullopt;
}

void Node::Write(const v1::OpenSessionRequest& request) {
  support::Require(stream_->Write(request), "the session broke");
}

v1::Command Member::Next() {
  std::optional<v1::Command> command = node_.Read();
  support::Require(command.has_value(), "the session ended");
  return *std::move(command);
}

v1::Command Member::NextOrder() {
  while (true) {
    v1::Command command = Next();
    if (!command.has_stop()) return command;
    Done(command);
  }
}

void Member::Done(const v1::Command& command, const std::string& data_digest) {
  v1::OpenSessionRequest request;
  request.mutable_command_result()->set_command_number(command.command_number());
  request.mutable_command_result()->set_data_digest(data_digest);
  node_.Write(request);
}

v1::Assign Member::TakeAssignment() {
  Done(NextOrder(), "data");
  v1::Command command = NextOrder();
  support::Require(command.has_assign(), "the node is told something else");
  Done(command);
  return std::move(*command.mutable_assign());
}

void Member::Report(const v1::Assign& assign, int32_t rank, v1::RankReport report) {
  report.set_job(assign.job());
  report.set_epoch(assign.epoch());
  report.set_rank(rank);
  v1::OpenSessionRequest request;
  *request.mutable_rank_report() = std::move(report);
  node_.Write(request);
}

void Member::Ready(const v1::Assign& assign, int32_t rank) {
  v1::RankReport report;
  report.mutable_ready();
  Report(assign, rank, std::move(report));
}

void Member::Step(const v1::Assign& assign, int64_t step) {
  v1::RankReport report;
  report.mutable_step()->set_step(step);
  report.mutable_step()->set_epoch(assign.epoch());
  Report(assign, 0, std::move(report));
}

v1::WorkerHello HelloOf(const std::string& node, const std::string& device_kind, int32_t devices) {
  v1::WorkerHello hello;
  hello.set_node(node);
  hello.set_incarnation(1);
  hello.set_protocol_version(kProtocolVersion);
  hello.set_device_kind(device_kind);
  hello.set_devices(devices);
  return hello;
}

}  // namespace phalanx::coordinator
