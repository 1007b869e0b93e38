/* Preloaded: counts the write-side operations below one folder, and lets one of them fail.
 *
 * An operation is an open for writing, write, fsync, rename, mkdir, truncate, or the close of a
 * file that was opened for writing. `fault_arm` is called by the process itself (faults.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = -1, KILL = -2 };
#define MOST 65536
static char root[PATH_MAX];
static atomic_long count;
static long at, last;
static int fault, report = -1;
static char ours[MOST];

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Operations `first` to `final` below `folder` fail, or none where `error` is 0; each is named in a
 * line on `descriptor`. */
void fault_arm(const char *folder, long first, long final, int error, int descriptor) {
    snprintf(root, sizeof root, "%s", folder);
    at = first, last = final, fault = error, report = descriptor;
    count = 0;
}

static int below(const char *path) {
    char whole[2 * PATH_MAX], here[PATH_MAX];
    if (!root[0] || !path) return 0;
    if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
    else if (getcwd(here, sizeof here)) snprintf(whole, sizeof whole, "%s/%s", here, path);
    else return 0;
    size_t length = strlen(root);
    return !strncmp(whole, root, length) && (whole[length] == '/' || !whole[length]);
}

/* Count an operation; return 0, the error that it fails with, or SHORT. */
static int due(const char *what) {
    long number = ++count;
    if (number < at || number > last) return 0;
    char line[64];
    int length = snprintf(line, sizeof line, "%ld %s\n", number, what);
    ssize_t (*raw)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (report >= 0 && raw(report, line, length) < 0) return 0;
    if (fault == KILL) raise(SIGKILL);
    return fault;
}

#define FAIL(what) \
    do { int error = due(what); if (error > 0) { errno = error; return -1; } } while (0)

static int opened(int descriptor, int counted) {
    if (descriptor >= 0 && descriptor < MOST) ours[descriptor] = (char)counted;
    return descriptor;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY)

#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    REAL(name); MODE(flags) \
    int counted = WRITES(flags) && below(path); \
    if (counted) FAIL("open"); \
    return opened(real(path, flags, mode), counted); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
int name(int folder, const char *path, int flags, ...) { \
    REAL(name); MODE(flags) \
    int counted = WRITES(flags) && (folder == AT_FDCWD || path[0] == '/') && below(path); \
    if (counted) FAIL("open"); \
    return opened(real(folder, path, flags, mode), counted); }
OPENAT(openat)
OPENAT(openat64)

#define OURS(descriptor) ((descriptor) >= 0 && (descriptor) < MOST && ours[descriptor])

ssize_t write(int descriptor, const void *bytes, size_t size) {
    REAL(write);
    if (OURS(descriptor)) {
        int error = due("write");
        if (error > 0) { errno = error; return -1; }
        if (error == SHORT && size > 1) size /= 2;
    }
    return real(descriptor, bytes, size);
}

ssize_t writev(int descriptor, const struct iovec *parts, int number) {
    REAL(writev);
    if (OURS(descriptor)) {
        int error = due("write");
        if (error > 0) { errno = error; return -1; }
        if (error == SHORT && number > 1) number /= 2;
    }
    return real(descriptor, parts, number);
}

#define PWRITE(name, type) \
ssize_t name(int descriptor, const void *bytes, size_t size, type offset) { \
    REAL(name); \
    if (OURS(descriptor)) { \
        int error = due("write"); \
        if (error > 0) { errno = error; return -1; } \
        if (error == SHORT && size > 1) size /= 2; } \
    return real(descriptor, bytes, size, offset); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* Folders are synced too: any descriptor counts while this process is armed. */
int fsync(int descriptor) { REAL(fsync); if (root[0]) FAIL("fsync"); return real(descriptor); }
int fdatasync(int d) { REAL(fdatasync); if (root[0]) FAIL("fsync"); return real(d); }

int rename(const char *from, const char *to) {
    REAL(rename); if (below(to)) FAIL("rename"); return real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat); if (below(to)) FAIL("rename"); return real(a, from, b, to);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir); if (below(path)) FAIL("mkdir"); return real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat); if (below(path)) FAIL("mkdir"); return real(folder, path, mode);
}
int ftruncate(int d, off_t size) {
    REAL(ftruncate); if (OURS(d)) FAIL("truncate"); return real(d, size);
}
int ftruncate64(int d, off64_t size) {
    REAL(ftruncate64); if (OURS(d)) FAIL("truncate"); return real(d, size);
}
int truncate(const char *p, off_t size) {
    REAL(truncate); if (below(p)) FAIL("truncate"); return real(p, size);
}

int close(int descriptor) {
    REAL(close);
    int counted = OURS(descriptor);
    if (counted) ours[descriptor] = 0;
    int result = real(descriptor);
    if (counted) FAIL("close");
    return result;
}
