# Build rules of the project: one library a folder, one test program a folder, executables in bin/.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT PHALANX_QUICK)
  # Paths relative to the checkout: a second checkout finds what the first has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
option(PHALANX_LIBFUZZER "Build libFuzzer programs (Clang)" OFF)
if(PHALANX_LIBFUZZER)
  # All code tells where it has been. Warnings are g++'s to give.
  add_compile_options(-fsanitize=fuzzer-no-link -w)
endif()
if(PHALANX_SANITIZE)
  add_compile_options(-fsanitize=${PHALANX_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PHALANX_SANITIZE})
  # Sanitized code hides from g++ that c10's optional guards are tested before they are read.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()
# Copies of optimizer state must stay bit-equal, so no multiply and add is fused behind our back.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# -Wrestrict: g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
set(PHALANX_WARNINGS -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -Wno-restrict)
if(CMAKE_UNITY_BUILD AND PHALANX_QUICK)
  set(PHALANX_WARNINGS -w)
elseif(CMAKE_UNITY_BUILD)
  # A source of several has types of other anonymous namespaces. What g++ finds as it optimises is an error in `release`:
  # here it sees more at once, and thinks that it sees what is not there.
  list(APPEND PHALANX_WARNINGS -Wno-subobject-linkage -Wno-error=maybe-uninitialized -Wno-error=array-bounds
       -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=dangling-pointer -Wno-error=free-nonheap-object
       -Wno-error=use-after-free -Wno-error=alloc-size-larger-than= -Wno-error=nonnull)
endif()
# The product: its arithmetic converts explicitly.
set(PHALANX_PRODUCT_FOLDERS "^(client|coordinator|core|transport|worker)(/|$)")
# What decides, plans and tells, which takes milliseconds of a small job either way.
set(PHALANX_RARE_FOLDERS "^(client|coordinator|core/(job|plan|schedule|wire)|transport|worker/agent)(/|$)")

function(phalanx_compile target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "EXCEPTIONS" "" "")
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${PHALANX_WARNINGS}>)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "${PHALANX_PRODUCT_FOLDERS}")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>)
  endif()
  if(PHALANX_QUICK AND folder MATCHES "${PHALANX_RARE_FOLDERS}")
    target_compile_options(${target} PRIVATE -O1)
  endif()
  if(NOT ARG_EXCEPTIONS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions>)
  endif()
endfunction()


# Headers among HDRS that no source of SRCS is named after: target `NAME_verify_interface_header_sets`
# compiles these alone (lint/headers). The others compile alone with their source, which includes them
# first (lint/layers).
function(phalanx_headers name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "SRCS;HDRS")
  foreach(header ${ARG_HDRS})
    cmake_path(REPLACE_EXTENSION header cc OUTPUT_VARIABLE source)
    if(source IN_LIST ARG_SRCS)
      list(APPEND sourced ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    else()
      list(APPEND alone ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    endif()
  endforeach()
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${sourced})
  if(alone)
    target_sources(${name} PUBLIC FILE_SET alone TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${alone})
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    if(folder MATCHES "${PHALANX_PRODUCT_FOLDERS}")
      set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY alone)
      set_property(GLOBAL APPEND PROPERTY PHALANX_HEADER_CHECKS ${name}_verify_interface_header_sets)
    endif()
  endif()
endfunction()

# phalanx_library(core/plan PURE SRCS a.cc HDRS a.h DEPS phalanx::core_job) makes phalanx::core_plan.
# PURE: no clock, thread, I/O, gRPC: tests/lint/purity.sh looks at the symbols. EXCEPTIONS: a third
# party throws inside; nothing may leave the library.
function(phalanx_library path)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "PURE;EXCEPTIONS" "" "SRCS;HDRS;DEPS")
  string(REPLACE "/" "_" name ${path})
  add_library(${name} STATIC ${ARG_SRCS})
  add_library(phalanx::${name} ALIAS ${name})
  phalanx_headers(${name} SRCS ${ARG_SRCS} HDRS ${ARG_HDRS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(ARG_EXCEPTIONS)
    phalanx_compile(${name} EXCEPTIONS)
  else()
    phalanx_compile(${name})
  endif()
  if(ARG_PURE)
    # Whole archive: a symbol that the declared dependencies do not define fails the build.
    add_executable(${name}_link_test ${PROJECT_SOURCE_DIR}/tests/lint/link_main.cc)
    set_target_properties(${name}_link_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lint)
    target_link_libraries(${name}_link_test PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,${name}>")
    add_test(NAME lint/purity/${path}
             COMMAND ${PROJECT_SOURCE_DIR}/tests/lint/purity.sh $<TARGET_FILE:${name}>)
    set_tests_properties(lint/purity/${path} PROPERTIES LABELS lint)
  endif()
endfunction()

# phalanx_executable(phalanx-worker SRCS main.cc DEPS ...) lands in bin/.
function(phalanx_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "EXCEPTIONS" "" "SRCS;DEPS")
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(ARG_EXCEPTIONS)
    phalanx_compile(${name} EXCEPTIONS)
  else()
    phalanx_compile(${name})
  endif()
endfunction()

# phalanx_test(unit/core/plan LABEL unit SRCS a_test.cc DEPS ...) makes one GoogleTest program and one
# CTest entry. TIMEOUT seconds (default 120). Tests compile with exceptions: test libraries throw.
# RESOURCE: entries naming the same resource do not run side by side.
function(phalanx_test path)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "LABEL;TIMEOUT;RESOURCE" "SRCS;DEPS;ENV")
  string(REPLACE "/" "_" name test_${path})
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} phalanx::tests_support_paths GTest::gmock
                        GTest::gtest_main)
  phalanx_compile(${name} EXCEPTIONS)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(PHALANX_SANITIZE)
    math(EXPR ARG_TIMEOUT "6 * ${ARG_TIMEOUT}")
  endif()
  if(PHALANX_SANITIZE MATCHES "thread")
    # Halting: a process that the test starts may end without the exit code that tells of reports.
    list(APPEND ARG_ENV
         "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1")
  endif()
  add_test(NAME ${path} COMMAND ${name})
  set_tests_properties(${path} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${ARG_ENV}")
  if(ARG_RESOURCE)
    set_tests_properties(${path} PROPERTIES RESOURCE_LOCK ${ARG_RESOURCE})
  endif()
endfunction()

# phalanx_fuzz(fuzz/http SRCS http_fuzz.cc DEPS ...): a test that tries mutations for some seconds, and
# with PHALANX_LIBFUZZER the program fuzz_http. SRCS define tests/fuzz/support/fuzz.h; TESTS are tests
# beside those mutations; COUNT is how many of them ctest tries (3000).
function(phalanx_fuzz path)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "COUNT" "SRCS;TESTS;DEPS")
  set(count)
  if(ARG_COUNT)
    set(count ENV PHALANX_FUZZ_COUNT=${ARG_COUNT})
  endif()
  set(support ${PROJECT_SOURCE_DIR}/tests/fuzz/support)
  # It asks whether a format has Mutated, which a joined source that defines it answers before the linker does.
  set_source_files_properties(${support}/fuzz_test.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  phalanx_test(${path} LABEL fuzz SRCS ${ARG_SRCS} ${ARG_TESTS} ${support}/fuzz_test.cc DEPS ${ARG_DEPS} phalanx::core_base ${count})
  if(PHALANX_LIBFUZZER)
    string(REPLACE "/" "_" name ${path})
    add_executable(${name} ${ARG_SRCS} ${support}/libfuzzer_main.cc)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} phalanx::core_base phalanx::tests_support_paths
                          -fsanitize=fuzzer)
  endif()
endfunction()

# phalanx_benchmark(core/plan SRCS ... DEPS ...): a Google Benchmark program in bench/, no test
# (phalanx_benchmark_test makes one of it).
function(phalanx_benchmark path)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "SRCS;DEPS")
  string(REPLACE "/" "_" name bench_${path})
  add_executable(${name} ${ARG_SRCS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark_main)
  phalanx_compile(${name} EXCEPTIONS)
endfunction()

# phalanx_benchmark_test(submit "clients:8/"): ctest runs those benchmarks of bench_submit that match,
# which are to be small and to judge no times, and fails where one has failed or none is there.
# Sanitizers leave it out: the benchmarks are hundreds of connections in one process.
function(phalanx_benchmark_test path filter)
  if(PHALANX_SANITIZE)
    return()
  endif()
  string(REPLACE "/" "_" name bench_${path})
  add_test(NAME bench/${path} COMMAND ${name} "--benchmark_filter=${filter}")
  # The program itself ends with 0 whatever its benchmarks say.
  set_tests_properties(bench/${path} PROPERTIES LABELS bench TIMEOUT 120 RESOURCE_LOCK e2e
                       FAIL_REGULAR_EXPRESSION "ERROR OCCURRED;Failed to match any benchmarks")
endfunction()
