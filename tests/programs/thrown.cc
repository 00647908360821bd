// Exceptions through several frames, with destructors and rethrows, for tests/machines/process.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

static int destroyed;

struct Held {
  int value;
  explicit Held(int n) : value(n) {}
  ~Held() { destroyed += value; }
};

__attribute__((noinline)) static int deepest(int n) {
  Held one(n);
  if (n % 3 == 0) throw std::runtime_error(std::to_string(n));
  if (n % 5 == 0) throw n;
  return n;
}

__attribute__((noinline)) static int middle(int n) {
  Held two(1);
  try {
    return deepest(n) + deepest(n + 1);
  } catch (int value) {
    if (value > 50) throw;
    return value;
  }
}

__attribute__((noinline)) static int outer(int n) {
  std::vector<std::string> kept(n % 4, "text");
  try {
    return middle(n) + static_cast<int>(kept.size());
  } catch (const std::exception &error) {
    return static_cast<int>(error.what()[0]);
  } catch (...) {
    return -1;
  }
}

int main() {
  int sum = 0;
  for (int n = 1; n < 120; n++) sum += outer(n);
  std::printf("%d %d\n", sum, destroyed);
  return sum % 100;
}
