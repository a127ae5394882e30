// transport/sound_files.h: files of certificates as they were when they were sound last.
//
// gRPC 1.51 looks at a server's files by itself and takes what it reads for good: of a file that is
// spoilt, or a key that is not that of the certificate, it makes nothing, and no handshake succeeds
// until they are mended. So it is shown copies, which lie in memory and have paths that lead there
// in this process alone. They change when the files have, and are sound: all at one time.
//
// Thread-safe.
#pragma once

#include "transport/tls.h"

namespace phalanx::transport {

// Copies of files that are all there. They are looked after until the process ends, once however
// often they are asked for: programs serve with one set. The files themselves, where they are not
// sound at first, or where there is no room for copies.
TlsFiles SoundCopyOf(const TlsFiles& files);

}  // namespace phalanx::transport
