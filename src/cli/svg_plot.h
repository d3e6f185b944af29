// A line plot as an SVG file of its own: no script, no font, light and dark alike.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fathom::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x > 0 ascending (the axis is logarithmic), y >= 0
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // at most 6 are told apart
};

// Plots one below the other.
std::string svg(std::span<const Plot> plots);

}  // namespace fathom::cli
