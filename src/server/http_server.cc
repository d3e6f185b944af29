#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "text/turn_memory.h"

namespace fathom::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxClientId = 128;

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

bool is_visible(std::string_view s) {
  for (const char c : s) {
    if (c < 0x21 || c > 0x7E) return false;
  }
  return !s.empty() && s.size() <= kMaxClientId;
}

}  // namespace

struct HttpServer::State {
  State(Options o, Handler h, Refuse r)
      : options(std::move(o)), handler(std::move(h)), refuse(std::move(r)), io(options.threads), acceptor(io) {}

  Options options;
  Handler handler;
  Refuse refuse;
  std::atomic<int> connections = 0;
  std::atomic<int> active = 0;
  asio::io_context io;
  tcp::acceptor acceptor;
  std::vector<std::thread> threads;
  std::uint16_t port = 0;
};

namespace {

// One connection. Everything but post() happens in its strand.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  template <class State>
  Connection(tcp::socket socket, State& state)
      : stream_(std::move(socket)),
        tick_(stream_.get_executor()),
        patience_(stream_.get_executor()),
        limits_(state.options.limits),
        handler_(state.handler),
        refuse_(state.refuse),
        connections_(state.connections),
        active_(state.active) {
    ++connections_;
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    const auto peer = stream_.socket().remote_endpoint(ignored);
    if (!ignored) peer_ = peer.address().to_string();
  }
  ~Connection() override { --connections_; }

  void start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      if (self->connections_ > self->limits_.connections) {
        self->refuse(503, "service_unavailable", "too many connections");
      } else {
        self->read_header();
      }
    });
  }

  void post(std::function<void()> work) override {
    asio::post(stream_.get_executor(), [self = shared_from_this(), work = std::move(work)] { work(); });
  }

  void add_header(std::string name, std::string value) override { extra_ += fmt::format("{}: {}\r\n", name, value); }

  void send(HttpAnswer answer) override {
    if (phase_ != Phase::kHandling) return;
    std::string head = begin(answer.status, answer.content_type);
    for (const auto& [name, value] : answer.headers) head += fmt::format("{}: {}\r\n", name, value);
    if (answer.status != 204 && answer.status != 304) head += fmt::format("Content-Length: {}\r\n", answer.body.size());
    head += "\r\n";
    if (!head_only_) head += answer.body;
    phase_ = Phase::kFlushing;
    put(std::move(head));
  }

  void begin_stream(std::function<std::string()> keep_alive) override {
    if (phase_ != Phase::kHandling) return;
    keep_alive_ = std::move(keep_alive);
    chunked_ = version_ >= 11;
    keep_open_ = keep_open_ && chunked_;
    std::string head = begin(200, "text/event-stream; charset=utf-8");
    head += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
    head += "\r\n";
    phase_ = Phase::kStreaming;
    put(std::move(head));
  }

  void write(std::string bytes) override {
    if (phase_ != Phase::kStreaming || bytes.empty()) return;
    put(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::move(bytes));
    if (unwritten_ > limits_.unread_bytes) lose();
  }

  void end_stream() override {
    if (phase_ != Phase::kStreaming) return;
    phase_ = Phase::kFlushing;
    if (chunked_) put("0\r\n\r\n");
    else flushed();
  }

  void on_gone(std::function<void()> call) override {
    if (phase_ == Phase::kClosed) call();
    else gone_ = std::move(call);
  }
  bool answered() const override { return phase_ == Phase::kFlushing || phase_ == Phase::kClosed; }

 private:
  enum class Phase : std::uint8_t { kReading, kHandling, kStreaming, kFlushing, kClosed };
  using Parser = http::request_parser<http::string_body>;

  void read_header() {
    phase_ = Phase::kReading;
    request_ = {};
    extra_.clear();
    head_only_ = false;
    parser_.emplace();
    parser_->header_limit(limits_.header_bytes);
    parser_->body_limit(limits_.body_bytes);
    be_patient(limits_.header_seconds);
    http::async_read_header(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      if (error) return self->read_failed(error);
      self->got_header();
    });
  }

  // Lets the read that is begun now fail after a while, with the connection still open for an answer, which the
  // stream's own time limit would close.
  void be_patient(int seconds) {
    timed_out_ = false;
    stream_.expires_never();
    patience_.expires_after(std::chrono::seconds(seconds));
    patience_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->phase_ != Phase::kReading || self->patience_.expiry() > Clock::now()) return;
      self->timed_out_ = true;
      error_code ignored;
      self->stream_.socket().cancel(ignored);
    });
  }

  void got_header() {
    read_request_line();
    keep_open_ = parser_->keep_alive();
    body_deadline_ = Clock::now() + std::chrono::seconds(limits_.body_seconds);
    if (const auto* expect = request_.header("expect"); expect != nullptr && lower(*expect) == "100-continue") {
      if (parser_->is_done()) return handle();
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      stream_.expires_after(std::chrono::seconds(limits_.write_seconds));
      asio::async_write(stream_, asio::buffer(kContinue), [self = shared_from_this()](error_code error, std::size_t) {
        if (error) return self->close();
        self->read_body();
      });
      return;
    }
    read_body();
  }

  void read_request_line() {
    const auto& message = parser_->get();
    const auto view = [](auto s) { return std::string(s.data(), s.size()); };
    request_.method = view(message.method_string());
    const std::string target = view(message.target());
    request_.path = target.substr(0, target.find_first_of("?#"));
    request_.peer = peer_;
    version_ = message.version();
    head_only_ = request_.method == "HEAD";
    for (const auto& field : message)
      request_.headers.emplace_back(lower(view(field.name_string())), view(field.value()));
    name_request();
  }

  void name_request() {
    const auto* own = request_.header("x-request-id");
    request_.id = own != nullptr && is_visible(*own) ? *own : text::new_call_id("req_");
    request_id_ = request_.id;
  }

  void read_body() {
    if (parser_->is_done()) return handle();
    if (Clock::now() > body_deadline_) return refuse(408, "timeout", "the request was not received in time");
    be_patient(limits_.body_idle_seconds);
    http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      if (error) return self->read_failed(error);
      self->read_body();
    });
  }

  void read_failed(error_code error) {
    if (error == http::error::end_of_stream || (error == asio::error::operation_aborted && !timed_out_)) return close();
    if (request_.id.empty()) name_request();
    if (timed_out_) {
      if (!parser_->got_some()) return close();  // an idle connection
      return refuse(408, "timeout", "the request was not received in time");
    }
    if (error == http::error::body_limit) {
      return refuse(413, "request_too_large",
                    fmt::format("the body is larger than {} bytes, the limit of this server", limits_.body_bytes));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return refuse(431, "header_too_large", fmt::format("the header is larger than {} bytes", limits_.header_bytes));
    }
    if (error.category() == http::make_error_code(http::error::end_of_stream).category() &&
        error != http::error::partial_message) {
      return refuse(400, "invalid_http", fmt::format("this is not an HTTP request: {}", error.message()));
    }
    close();
  }

  // Answers what could not be read, and closes: where the next request begins is not known.
  void refuse(int status, std::string_view code, std::string message) {
    if (request_.id.empty()) name_request();
    keep_open_ = false;
    version_ = 11;
    phase_ = Phase::kHandling;
    ++active_;
    send(refuse_(request_, status, code, std::move(message)));
  }

  void handle() {
    request_.body = std::move(parser_->get().body());
    phase_ = Phase::kHandling;
    patience_.cancel();
    ++active_;
    half_closed_ = false;
    last_write_ = Clock::now();
    watch();
    tick();
    handler_(shared_from_this(), std::move(request_));
  }

  std::string begin(int status, std::string_view type) const {
    std::string head = fmt::format("HTTP/1.{} {} {}\r\nserver: fathom\r\nx-request-id: {}\r\nrequest-id: {}\r\n",
                                   version_ >= 11 ? 1 : 0, status, reason_of(status), request_id_, request_id_);
    if (!type.empty() && status != 204) head += fmt::format("Content-Type: {}\r\n", type);
    head += extra_;
    if (!keep_open_) head += "Connection: close\r\n";
    else if (version_ < 11) head += "Connection: keep-alive\r\n";
    return head;
  }

  void put(std::string bytes) {
    unwritten_ += bytes.size();
    waiting_ += bytes;
    last_write_ = Clock::now();
    if (writing_.empty()) write_next();
  }

  void write_next() {
    writing_.swap(waiting_);
    waiting_.clear();
    stream_.expires_after(std::chrono::seconds(limits_.write_seconds));
    asio::async_write(stream_, asio::buffer(writing_), [self = shared_from_this()](error_code error, std::size_t) {
      self->unwritten_ -= self->writing_.size();
      self->writing_.clear();
      if (self->phase_ == Phase::kClosed) return;
      if (error) return self->lose();
      if (!self->waiting_.empty()) return self->write_next();
      if (self->phase_ == Phase::kFlushing) self->flushed();
    });
  }

  // The answer is on its way in full.
  void flushed() {
    if (!writing_.empty() || !waiting_.empty()) return;
    answer_ended();
    error_code ignored;
    stream_.socket().cancel(ignored);  // the watch; nothing else is under way
    if (keep_open_) return read_header();
    // What the client still sends is read and dropped for a moment: closing now would reset the connection, and the
    // client might lose the answer.
    phase_ = Phase::kClosed;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(2));
    drop_rest();
  }

  void drop_rest() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(16384), [self = shared_from_this()](error_code error, std::size_t n) {
      self->dropped_ += n;
      if (error || self->dropped_ > 2 * self->limits_.body_bytes) return self->close();
      self->drop_rest();
    });
  }

  void answer_ended() {
    --active_;
    gone_ = nullptr;
    keep_alive_ = nullptr;
    tick_.cancel();
    ++watch_;
  }

  // The client is gone, or counts as gone.
  void lose() {
    if (phase_ == Phase::kClosed) return;
    const bool unanswered = phase_ == Phase::kHandling || phase_ == Phase::kStreaming;
    const auto call = std::move(gone_);
    if (phase_ != Phase::kReading) answer_ended();
    phase_ = Phase::kClosed;
    close();
    if (unanswered && call) call();
  }

  // Timers that still ran would keep this object, and its place among the connections, until they end.
  void close() {
    phase_ = Phase::kClosed;
    patience_.cancel();
    tick_.cancel();
    error_code ignored;
    stream_.socket().close(ignored);
  }

  // Looks whether the client goes away while its answer is being made.
  void watch() {
    stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(), mine = ++watch_](error_code error) {
      if (error || mine != self->watch_ || self->phase_ == Phase::kClosed) return;
      char byte = 0;
      const auto n = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n == 0) self->half_closed_ = true;  // perhaps only its sending side: tick() finds out
      else if (n < 0 && errno != EAGAIN && errno != EINTR) self->lose();
      else if (n < 0) self->watch();
    });
  }

  // Once a second while an answer is being made: keep-alives, and whether a client that sends no more still reads. A
  // client that has closed answers the first byte with a reset, and the next write fails. Before the answer begins an
  // interim response is such a byte; RFC 9110 lets a server send any number.
  void tick() {
    tick_.expires_after(std::chrono::seconds(1));
    tick_.async_wait([self = shared_from_this()](error_code error) {
      if (error || (self->phase_ != Phase::kHandling && self->phase_ != Phase::kStreaming)) return;
      const auto quiet = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - self->last_write_).count();
      if (self->phase_ == Phase::kStreaming) {
        if (quiet >= self->limits_.keep_alive_seconds || self->half_closed_) self->write(self->keep_alive_());
      } else if (self->half_closed_ && self->version_ >= 11) {
        self->put("HTTP/1.1 100 Continue\r\n\r\n");
      }
      if (self->phase_ != Phase::kClosed) self->tick();
    });
  }

  beast::tcp_stream stream_;
  asio::steady_timer tick_;
  asio::steady_timer patience_;
  const HttpLimits& limits_;
  const Handler& handler_;
  const Refuse& refuse_;
  std::atomic<int>& connections_;
  std::atomic<int>& active_;
  std::string peer_;

  beast::flat_buffer buffer_{std::size_t{256} << 10U};
  std::optional<Parser> parser_;
  HttpRequest request_;
  std::string request_id_;
  Clock::time_point body_deadline_;
  std::size_t dropped_ = 0;

  Phase phase_ = Phase::kReading;
  unsigned version_ = 11;
  bool head_only_ = false;
  bool keep_open_ = true;
  bool chunked_ = true;
  bool half_closed_ = false;
  bool timed_out_ = false;
  std::uint64_t watch_ = 0;
  std::string extra_;
  std::function<std::string()> keep_alive_;
  std::string writing_;
  std::string waiting_;
  std::size_t unwritten_ = 0;
  Clock::time_point last_write_;
  std::function<void()> gone_;
};

template <class State>
void accept_next(State& s) {
  s.acceptor.async_accept(asio::make_strand(s.io), [&s](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) std::make_shared<Connection>(std::move(socket), s)->start();
    // Out of descriptors or the like: a pause, so that connections may end, in place of a loop that spins.
    else std::this_thread::sleep_for(std::chrono::milliseconds(50));
    accept_next(s);
  });
}

}  // namespace

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(Options options, Handler handler, Refuse refuse) {
  auto state = std::make_unique<State>(std::move(options), std::move(handler), std::move(refuse));
  State& s = *state;
  error_code error;
  const auto address = asio::ip::make_address(s.options.host, error);
  if (error) return fail(Code::kInvalid, "host {} is not an address", s.options.host);
  const tcp::endpoint at(address, s.options.port);
  s.acceptor.open(at.protocol(), error);
  if (!error) s.acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) s.acceptor.bind(at, error);
  if (!error) s.acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return fail(Code::kUnavailable, "cannot listen on {} port {}: {}", s.options.host, s.options.port, error.message());
  s.port = s.acceptor.local_endpoint(error).port();
  accept_next(s);
  for (int i = 0; i < s.options.threads; ++i) s.threads.emplace_back([&s] { s.io.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() {
  state_->io.stop();
  for (auto& t : state_->threads) t.join();
}

std::uint16_t HttpServer::port() const { return state_->port; }
int HttpServer::active() const { return state_->active; }

}  // namespace fathom::server
