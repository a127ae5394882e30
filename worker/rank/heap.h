// worker/rank/heap.h: what the heap of a rank does with freed memory.
#pragma once

namespace phalanx::rank {

// Keeps it for the process, except blocks beyond 32 MiB, the most that glibc can be told. What a
// pass lets go the next one asks for again, and each page that the kernel took back in between
// costs a fault. The most memory that the process ever has stays the same: it is reached every
// step.
//
// False: this heap is not glibc's and does what it likes.
bool KeepFreedMemory();

// Gives the kernel back what is freed by now, which takes some 30 ms a GiB: for behind work
// that needs much more of the heap than steps do.
void GiveFreedMemoryBack();

}  // namespace phalanx::rank
