# Writes OUTPUT, a header that defines TENON_SOURCES_HASH: SHA-256 over "path SHA-256\n" of every source, sorted by path.
# tenon_cpu/native.py computes the same over a checkout's sources and refuses a library built from others.
#   cmake -DROOT=plugins/cpu/native -DOUTPUT=FILE -P sources_hash.cmake
file(GLOB_RECURSE FILES RELATIVE "${ROOT}" "${ROOT}/src/*.h" "${ROOT}/src/*.cpp" "${ROOT}/src/*.inl" "${ROOT}/include/*.h")
list(APPEND FILES CMakeLists.txt)
list(SORT FILES)
set(LINES "")
foreach(one IN LISTS FILES)
  file(SHA256 "${ROOT}/${one}" hash)
  string(APPEND LINES "${one} ${hash}\n")
endforeach()
string(SHA256 hash "${LINES}")
set(TEXT "#define TENON_SOURCES_HASH \"${hash}\"\n")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT "${before}" STREQUAL "${TEXT}")
  file(WRITE "${OUTPUT}" "${TEXT}")
endif()
