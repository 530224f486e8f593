# Sourced by tools/demo and tools/test, from the root of the checkout: the virtual environment .venv that both use.

# The first Python from 3.14 down to 3.11 that can make a virtual environment, as $PYTHON; or one line with what to install.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      PYTHON=$candidate
      return
    fi
  done
  echo "error: no Python 3.11 to 3.14 with venv was found; install it, e.g.: apt-get install python3 python3-venv" >&2
  exit 1
}

# Whether a C++17 compiler is there.
find_compiler() {
  local folder
  folder=$(mktemp -d)
  echo '#include <string_view>
int main() { if (std::string_view text = "x"; !text.empty()) return 0; }' >"$folder/try.cc"
  "${CXX:-c++}" -std=c++17 -o "$folder/try" "$folder/try.cc" 2>/dev/null || "${CXX:-g++}" -std=c++17 -o "$folder/try" "$folder/try.cc" 2>/dev/null
  local result=$?
  rm -rf "$folder"
  return $result
}

# make_venv REQUIREMENT [PIP OPTIONS]: .venv with the package of this checkout in it (editable); quick where nothing changed since the last time.
make_venv() {
  local stamp
  stamp=$( (echo "$@"; cat pyproject.toml custom_ops/CMakeLists.txt custom_ops/src/* src/tilewright/__init__.py) | sha256sum)
  if [[ $(cat .venv/stamp 2>/dev/null) == "$stamp" ]] && .venv/bin/python -c '' 2>/dev/null; then return; fi
  .venv/bin/python -c '' 2>/dev/null || "$PYTHON" -m venv --clear .venv
  echo "installing into .venv (the first time takes a few minutes)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "$@"
  echo "$stamp" >.venv/stamp
}
