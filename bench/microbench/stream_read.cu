// How fast a matrix is read once from HBM inside a graph: by plain loads, and by a ring of bulk copies.
#include "microbench.cuh"
#include "stream.cuh"

namespace fathom::microbench {

Rows stream_read() {
  constexpr std::size_t kPool = std::size_t{1} << 30;  // many times L2, so that nothing is found there
  const Memory pool(kPool);
  const Memory sink(4);
  Rows rows;
  for (const std::size_t mb : {6U, 25U, 33U, 80U}) {
    const std::size_t bytes = mb << 20;
    const int kernels = static_cast<int>(kPool / bytes);
    for (const bool early : {false, true}) {
      for (const Reading& r : kReadings) {
        const float ms = best_of(3, [&](cudaStream_t s) {
          for (int i = 0; i < kernels; ++i)
            r.launch(s, pool.as<char>() + i * bytes, bytes, sink.as<std::uint32_t>(), early);
        });
        rows.push_back({"stream_read", std::to_string(mb) + " MB, " + r.name + (early ? ", early launch" : ""),
                        static_cast<double>(bytes) * kernels / ms * 1e-6, "GB/s"});
      }
    }
  }
  return rows;
}

}  // namespace fathom::microbench
