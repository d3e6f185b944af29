// EndRate: how many requests end a second, of late: what those who wait may expect. Time without any request does not
// count.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fathom::engine {

class EndRate {
 public:
  // Time goes on, and since the last call there was something to do or not. now_us never goes back.
  void at(std::int64_t now_us, bool busy) {
    if (busy && now_us_ != 0) busy_us_ += now_us - now_us_;
    now_us_ = now_us;
  }
  void ended() { times_[n_++ % times_.size()] = busy_us_; }
  // Over the last ends that are known; falls while there are none. 0: not known yet.
  double per_second() const {
    const std::size_t known = n_ < times_.size() ? n_ : times_.size();
    if (known < 2) return 0;
    const std::int64_t since = times_[(n_ - known) % times_.size()];
    return static_cast<double>(known - 1) * 1e6 / static_cast<double>(busy_us_ > since ? busy_us_ - since : 1);
  }

 private:
  std::array<std::int64_t, 64> times_{};  // by busy_us_
  std::size_t n_ = 0;
  std::int64_t busy_us_ = 0;
  std::int64_t now_us_ = 0;
};

}  // namespace fathom::engine
