#!/bin/bash
# A C++ compiler run on generated source.
#
#   compile_cpp.sh [FUNCTIONS] [FILES]     default 100 functions in one file, 600 MiB
#
# Several files: make -j2 with a run for each, so two at a time.
set -eu -o pipefail
functions=${1:-100}
files=${2:-1}

# A source that costs the compiler some memory; another for each number.
source_text() {
	awk -v number="$1" -v functions="$functions" 'BEGIN {
		split("algorithm functional iostream map regex string unordered_map vector", headers)
		for (i = 1; i in headers; i++)
			printf "#include <%s>\n", headers[i]
		for (i = 0; i < functions; i++) {
			printf "struct K%d { int v; bool operator<(const K%d &o) const { return v < o.v; } };\n", i, i
			printf "int f%d_%d(int n) {\n", number, i
			printf "  std::map<K%d, std::vector<std::string>> m;\n", i
			printf "  for (int j = 0; j < n; j++) m[K%d{j %% %d}].push_back(std::to_string(j));\n", i, i + 3
			printf "  std::regex r(\"%d+\");\n  int s = 0;\n", i
			printf "  for (auto &p : m) for (auto &x : p.second) s += std::regex_search(x, r);\n  return s;\n}\n"
		}
	}'
}

if [ "$files" = 1 ]; then
	source_text 0 | g++ -O1 -S -x c++ -o - - | sha256sum
	exit
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
for ((n = 0; n < files; n++)); do
	source_text "$n" >"f$n.cpp"
done
cat >Makefile <<'RULES'
all: $(patsubst %.cpp,%.s,$(wildcard *.cpp))
%.s: %.cpp
	@g++ -O1 -S -o $@ $<
RULES
make -j2
cat f*.s | sha256sum
