#include "cli/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fathom::cli {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kLeft = 80;
constexpr double kRight = 150;
constexpr double kTop = 50;
constexpr double kBottom = 60;
constexpr std::array<const char*, 6> kColours = {"#2f6fde", "#d9822b", "#2a9d6a", "#b8406b", "#7a5bd0", "#8a8a8a"};

std::string escaped(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else out += c;
  }
  return out;
}

// The smallest of 1, 2, 5 times a power of ten that is at least x.
double round_up(double x) {
  const double power = std::pow(10, std::floor(std::log10(std::max(x, 1e-9))));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= x) return m * power;
  }
  return 10 * power;
}

struct Scale {
  double x_min = 1e300, x_max = 0, y_max = 0;
  explicit Scale(const Plot& p) {
    for (const Series& s : p.series) {
      for (const auto& [x, y] : s.points) {
        x_min = std::min(x_min, x);
        x_max = std::max(x_max, x);
        y_max = std::max(y_max, y);
      }
    }
    y_max = round_up(y_max);
  }
  double x(double v) const {
    const double span = std::log(x_max / x_min);
    return kLeft + (span > 0 ? std::log(v / x_min) / span : 0.5) * (kWidth - kLeft - kRight);
  }
  double y(double v) const { return kHeight - kBottom - v / y_max * (kHeight - kTop - kBottom); }
};

std::string panel(const Plot& plot, double top) {
  const Scale scale(plot);
  std::string out =
      fmt::format("<g transform=\"translate(0 {:g})\"><text x=\"{:g}\" y=\"26\" font-size=\"16\">{}</text>\n", top,
                  kLeft, escaped(plot.title));
  for (int i = 0; i <= 4; ++i) {
    const double v = scale.y_max * i / 4;
    out += fmt::format(
        "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#8884\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:g}</text>\n",
        kLeft, scale.y(v), kWidth - kRight, kLeft - 8, scale.y(v) + 4, v);
  }
  std::vector<double> ticks;
  for (const Series& s : plot.series) {
    for (const auto& point : s.points) ticks.push_back(point.first);
  }
  std::sort(ticks.begin(), ticks.end());
  ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  for (const double x : ticks) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.8g}</text>\n", scale.x(x),
                       kHeight - kBottom + 18, x);
  }
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 18, escaped(plot.x_label));
  out += fmt::format("<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     kHeight / 2, escaped(plot.y_label));
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    const char* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [x, y] : s.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", scale.x(x), scale.y(y));
      out +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", scale.x(x), scale.y(y), colour);
    }
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour);
    const double y = kTop + 20 * static_cast<double>(i);
    out += fmt::format(
        "<path d=\"M{:.1f} {:.1f}h18\" stroke=\"{}\" stroke-width=\"3\"/><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        kWidth - kRight + 14, y, colour, kWidth - kRight + 38, y + 4, escaped(s.name));
  }
  return out + "</g>\n";
}

}  // namespace

std::string svg(std::span<const Plot> plots) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"system-ui, sans-serif\" "
      "font-size=\"12\" fill=\"#555\">\n",
      kWidth, kHeight * static_cast<double>(plots.size()));
  for (std::size_t i = 0; i < plots.size(); ++i) out += panel(plots[i], kHeight * static_cast<double>(i));
  return out + "</svg>\n";
}

}  // namespace fathom::cli
