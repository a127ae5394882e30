# Part of image.sh: the image of the worker with ranks for CUDA. Its packages are those of a build of the preset
# `cuda` beside BUILD_FOLDER, or else of a rank that does nothing; NVIDIA's repository is one of packages of the
# same names, with NCCL of a toolkit in /usr/local/cuda, if there is one, and empty libraries for the rest.
say "packages for CUDA"
toolkit=/usr/local/cuda/lib64
[ -d "$toolkit" ] || toolkit=
. "$source/tests/package/cuda_parts.sh"
cuda=$build/../cuda
if [ ! -x "$cuda/bin/phalanx-rank" ]; then
  echo "skipped: a rank for CUDA in the image; there is no build of the preset cuda in $cuda"
  stand_in_build "$work/stand-in" > "$work/stand-in.log" 2>&1 || fail "the build of nothing but packages"
  cuda=$work/stand-in/build
fi
mkdir -p "$work/gpu" "$work/nvidia"
cp -a "$source/deploy" "$source/scripts" "$work/gpu/"
cpack --config "$cuda/CPackConfig.cmake" -B "$work/gpu/packages" > "$work/cpack-cuda.log" 2>&1 || fail "cpack for CUDA"
rm -rf "$work/gpu/packages/_CPack_Packages"
nvidia_packages "$work/nvidia"

say "image of the worker for GPUs"
base=$(buildah "${store[@]}" from --pull-never localhost/debian:test)
buildah "${store[@]}" copy --quiet "$base" "$work/nvidia" /opt/nvidia > /dev/null
echo 'deb [trusted=yes] file:/opt/nvidia ./' > "$work/nvidia.list"
buildah "${store[@]}" copy --quiet "$base" "$work/nvidia.list" /etc/apt/sources.list.d/nvidia.list > /dev/null
buildah "${store[@]}" commit --quiet --rm "$base" localhost/debian-nvidia:test > /dev/null
gpu_image() {  # BASE LOG
  buildah "${store[@]}" build --isolation chroot --pull-never --target worker --build-arg DEVICE=cuda \
    --build-arg "BASE_IMAGE=$1" -f deploy/Containerfile -t localhost/phalanx-worker-cuda:test "$work/gpu" > "$2" 2>&1
}
! gpu_image localhost/debian:test "$work/refused" || fail "an image for GPUs without NVIDIA's repository"
grep -q 'Depends: libnccl2 but it is not installable' "$work/refused" || { tail "$work/refused"; fail "apt does not say what is missing"; }
gpu_image localhost/debian-nvidia:test "$work/worker-cuda.log" || fail "the image of the worker for GPUs"
look_into worker-cuda phalanx-worker
inside worker-cuda ldd /usr/bin/phalanx-rank > "$work/libraries"
! grep 'not found' "$work/libraries" || fail "libraries of ranks are missing in the image for GPUs"
for library in libtorch_cpu.so libtorch_cuda.so libcudart.so.13 libnccl.so.2 libcudnn.so.9; do
  grep -q "$library => /" "$work/libraries" || fail "the rank in the image for GPUs does not load $library"
done
