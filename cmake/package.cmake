# Debian packages: `cpack -G DEB` in a build folder packs what is built there and builds nothing itself.
#
#   phalanx-client         the command, its completions, examples
#   phalanx-coordinator    the coordinator, as a service
#   phalanx-worker         the daemon of a node, as a service
#   phalanx-rank-cpu       the rank process with LibTorch beside it, or
#   phalanx-rank-cuda      the same from a build with PHALANX_WITH_CUDA
#
# docs/install.md says how they are used, docs/decisions/0034-packages.md why they are cut so.

set(PHALANX_PACKAGE_RELEASE 1 CACHE STRING "Debian revision of the packages")
set(PHALANX_PACKAGE_CONTACT "Phalanx maintainers <phalanx@packages.invalid>" CACHE STRING
    "Maintainer that the packages name")
# What LibTorch 2.11.0 for CUDA 13 and the rank load beside themselves, and which package of NVIDIA's
# repository for Debian 12 brings it.
set(PHALANX_CUDA_LIBRARIES
    libcublas.so.13=libcublas-13-0 libcublasLt.so.13=libcublas-13-0 libcudnn.so.9=libcudnn9-cuda-13
    libcufft.so.12=libcufft-13-0 libcufile.so.0=libcufile-13-0 libcurand.so.10=libcurand-13-0
    libcusolver.so.12=libcusolver-13-0 libcusparse.so.12=libcusparse-13-0
    libcusparseLt.so.0=libcusparselt0-cuda-13 libnccl.so.2=libnccl2 libnvshmem_host.so.3=libnvshmem3-cuda-13
    CACHE STRING "CUDA's libraries that the rank loads, each with the package that phalanx-rank-cuda depends on for it")

set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(version ${PROJECT_VERSION}-${PHALANX_PACKAGE_RELEASE})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME phalanx)
set(CPACK_PACKAGE_CONTACT ${PHALANX_PACKAGE_CONTACT})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${PHALANX_PACKAGE_RELEASE})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENTS_ALL "")

# phalanx_package(component NAME phalanx-client PROGRAM target ABOUT "what it is" DESCRIPTION "..."):
# one package of one program, with what every Debian package has: a manual page, which is the program's
# own help (HELP: the flag that prints it), copyright and changelog.
function(phalanx_package component)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "NAME;PROGRAM;ABOUT;DESCRIPTION;HELP;COPYRIGHT" "")
  string(TOUPPER ${component} COMPONENT)
  install(TARGETS ${ARG_PROGRAM} RUNTIME DESTINATION bin COMPONENT ${component})
  install(FILES ${debian}/${ARG_COPYRIGHT} DESTINATION share/doc/${ARG_NAME} RENAME copyright
          COMPONENT ${component})
  install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND \"${debian}/add_texts\"
    ${ARG_NAME} $<TARGET_FILE_NAME:${ARG_PROGRAM}> \"${ARG_ABOUT}\" ${ARG_HELP}
    WORKING_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")" COMPONENT ${component})
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME ${ARG_NAME} PARENT_SCOPE)
  set(CPACK_COMPONENT_${COMPONENT}_DESCRIPTION "${ARG_ABOUT}\n${ARG_DESCRIPTION}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
endfunction()

# phalanx_service(coordinator): /etc/phalanx/coordinator.env and phalanx-coordinator.service, run by the
# user phalanx, which is made when the package is installed. Nothing is enabled or started then.
function(phalanx_service component)
  string(TOUPPER ${component} COMPONENT)
  set(SERVICE phalanx-${component})
  set(scripts ${PROJECT_BINARY_DIR}/package/${component})
  foreach(script postinst prerm postrm conffiles)
    configure_file(${debian}/service/${script}.in ${scripts}/${script} @ONLY)
  endforeach()
  install(FILES ${debian}/${component}.env DESTINATION /etc/phalanx COMPONENT ${component})
  install(FILES ${debian}/${SERVICE}.service DESTINATION /lib/systemd/system COMPONENT ${component})
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_CONTROL_EXTRA
      ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${scripts}/conffiles PARENT_SCOPE)
endfunction()

set(about "Phalanx trains multimodal models on many GPUs, with parallelism of every kind,
and goes on when some of them are lost.")

phalanx_package(client NAME phalanx-client PROGRAM phalanx COPYRIGHT copyright HELP --help-all
  ABOUT "submits and follows training jobs"
  DESCRIPTION "${about}
.
This is its command line, for laptops and login nodes. To train on the same
machine with phalanx run, install phalanx-coordinator and phalanx-worker too.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS
    "openssl, phalanx-coordinator, phalanx-worker, python3, sentencepiece, fonts-noto-color-emoji, unicode-cldr-core")
install(FILES examples/emoji-captions.yaml examples/language-tp3.yaml DESTINATION share/doc/phalanx-client/examples
        COMPONENT client)
install(PROGRAMS examples/make_emoji.py scripts/make_ca DESTINATION share/doc/phalanx-client/examples COMPONENT client)

phalanx_package(coordinator NAME phalanx-coordinator PROGRAM phalanx-coordinator COPYRIGHT copyright HELP --help
  ABOUT "coordinator of training jobs"
  DESCRIPTION "${about}
.
The coordinator takes jobs, plans them on the nodes of a cluster and keeps
what it has decided. A cluster has one. Installing it starts nothing.")
phalanx_service(coordinator)
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_DEPENDS adduser)

phalanx_package(worker NAME phalanx-worker PROGRAM phalanx-worker COPYRIGHT copyright HELP --help
  ABOUT "daemon that runs training jobs on a node"
  DESCRIPTION "${about}
.
The worker joins a coordinator and runs the ranks of its jobs on the devices
of this node. Installing it starts nothing.")
phalanx_service(worker)
# Daemon and rank are of one build: they share memory and speak a protocol of their own.
set(CPACK_DEBIAN_WORKER_PACKAGE_DEPENDS
    "adduser, phalanx-rank-cpu (= ${version}) | phalanx-rank-cuda (= ${version})")

if(TARGET phalanx-rank)
  set(kind cpu)
  set(devices "processors")
  if(PHALANX_WITH_CUDA)
    set(kind cuda)
    set(devices "NVIDIA GPUs and processors")
  endif()
  set_target_properties(phalanx-rank PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib/phalanx/libtorch")
  phalanx_package(rank NAME phalanx-rank-${kind} PROGRAM phalanx-rank COPYRIGHT copyright.rank
    ABOUT "process of a training job on one device"
    DESCRIPTION "${about}
.
This is the process that the worker starts for each device, for ${devices},
with the LibTorch that it was built with.")
  set(CPACK_DEBIAN_RANK_PACKAGE_PROVIDES "phalanx-rank (= ${version})")
  set(CPACK_DEBIAN_RANK_PACKAGE_CONFLICTS phalanx-rank)
  set(CPACK_DEBIAN_RANK_PACKAGE_REPLACES phalanx-rank)
  if(PHALANX_WITH_CUDA)
    list(TRANSFORM PHALANX_CUDA_LIBRARIES REPLACE "^.*=" "" OUTPUT_VARIABLE cuda_packages)
    list(REMOVE_DUPLICATES cuda_packages)
    list(JOIN cuda_packages ", " CPACK_DEBIAN_RANK_PACKAGE_DEPENDS)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/package/cuda)
    install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND \"${debian}/stand_ins\"
      \"${PROJECT_BINARY_DIR}/package/cuda\" \"${CMAKE_C_COMPILER}\" \"${PHALANX_CUDA_LIBRARIES}\"
      \"$<TARGET_FILE:phalanx-rank>\" ${LibTorch_RUNTIME_LIBRARIES})" COMPONENT rank)
  endif()
  # LibTorch is no Debian package: what the rank loads of it lies in a folder of our own, without symbols
  # for debuggers, and finds the rest of itself there.
  install(FILES ${LibTorch_RUNTIME_LIBRARIES} DESTINATION lib/phalanx/libtorch COMPONENT rank)
  install(DIRECTORY ${LibTorch_ROOT}/licenses/ DESTINATION share/doc/phalanx-rank-${kind}/libtorch
          COMPONENT rank OPTIONAL)
  install(CODE "set(strip \"${CMAKE_STRIP}\")\ninclude(\"${PROJECT_SOURCE_DIR}/cmake/own_libraries.cmake\")" COMPONENT rank)
endif()

include(CPack)
