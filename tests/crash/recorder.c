// LD_PRELOAD: each change of what lies below one directory is written to a record, in order, and one of them can be made to fail or to kill.
// `recorder_arm` begins. What the record cannot hold ends the process; what comes past it (a mapping, say) is seen when a directory is
// compared with what its record gives.
// One change: op, inode, two numbers, length of data and of two paths, the paths, the data.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char dir[PATH_MAX];
static size_t dirlen;
static int out = -1, fail_errno, failing;
static long count, fail_at;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// The change number `at` fails with `error`; with ENOSPC so does what follows and needs room; without an error it kills. 0: none does.
void recorder_arm(const char *directory, const char *record, long at, int error) {
  out = syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  fail_at = at, fail_errno = error;
  snprintf(dir, sizeof dir, "%s", directory);
  dirlen = strlen(dir);
}

static void refuse(const char *what) { fprintf(stderr, "recorder: %s cannot be recorded\n", what); abort(); }

// Among all processes that record: a change and its line are one step.
static void begin(void) {
  pthread_mutex_lock(&mutex);
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  while (fcntl(out, F_SETLKW, &lock) && errno == EINTR) {}
}
static long end(long result) {
  int error = errno;
  struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
  fcntl(out, F_SETLK, &lock);
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}
static void line(char op, uint64_t inode, uint64_t a, uint64_t b, const char *p, const char *q, const void *data, uint64_t n) {
  struct __attribute__((packed)) { char op; uint64_t inode, a, b, n; uint16_t lp, lq; } head = {op, inode, a, b, n, p ? strlen(p) : 0, q ? strlen(q) : 0};
  struct iovec parts[] = {{&head, sizeof head}, {(void *)p, head.lp}, {(void *)q, head.lq}, {(void *)data, n}};
  int error = errno;
  if (syscall(SYS_writev, out, parts, 4) < 0) refuse("this (the record's disk is full)");
  errno = error;
  count += op != 'A';
}
void recorder_note(const char *text) { if (out >= 0) { begin(); line('A', 0, 0, 0, NULL, NULL, text, strlen(text)); end(0); } }

// Whether this change fails. On a full disk it does so only if it needs room.
static int fails(int needs_room) {
  int now = count + 1 == fail_at;
  if (now && !fail_errno) raise(SIGKILL);
  if (now) failing = fail_errno == ENOSPC, fail_at = 0;
  if (failing ? !needs_room : !now) return 0;
  errno = fail_errno;
  return 1;
}

static int inside(const char *path) { return out >= 0 && !strncmp(path, dir, dirlen) && (path[dirlen] == '/' || !path[dirlen]); }
static int open_inside(int fd, char *path) {
  char link[32];
  if (out < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  path[n > 0 ? n : 0] = 0;
  return inside(path);
}
static int named_inside(int at, const char *path, char *full) {
  char base[PATH_MAX] = "", link[32];
  if (out < 0) return 0;
  if (path[0] != '/' && at == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
  else if (path[0] != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    if (readlink(link, base, sizeof base - 1) < 0) return 0;
  }
  if (snprintf(full, PATH_MAX, "%s%s%s", base, *base ? "/" : "", path) >= PATH_MAX) refuse("so long a path");
  return inside(full);
}
static uint64_t inode_of(const char *path) { struct stat s; return lstat(path, &s) ? 0 : s.st_ino; }
static uint64_t inode(int fd) { struct stat s; return fstat(fd, &s) ? 0 : s.st_ino; }

static int do_open(int at, const char *path, int flags, mode_t mode) {
  char full[PATH_MAX];
  if (!named_inside(at, path, full) || !(flags & (O_CREAT | O_TRUNC | O_SYNC | O_DSYNC)) || flags & O_DIRECTORY)
    return syscall(SYS_openat, at, path, flags, mode);
  if (flags & (O_SYNC | O_DSYNC)) refuse("O_SYNC");
  begin();
  uint64_t existed = inode_of(full);
  if ((!existed || flags & O_TRUNC) && fails(!existed)) return end(-1);
  int fd = syscall(SYS_openat, at, path, flags, mode);
  if (fd >= 0 && (!existed || flags & O_TRUNC)) line(existed ? 't' : 'o', inode(fd), 0, 0, full, NULL, NULL, 0);
  return end(fd);
}
#define OPEN(name, at, ...) int name(__VA_ARGS__, const char *path, int flags, ...) { va_list v; va_start(v, flags); mode_t mode = va_arg(v, mode_t); va_end(v); return do_open(at, path, flags, mode); }
#define OPEN_HERE(name) int name(const char *path, int flags, ...) { va_list v; va_start(v, flags); mode_t mode = va_arg(v, mode_t); va_end(v); return do_open(AT_FDCWD, path, flags, mode); }
OPEN_HERE(open) OPEN_HERE(open64) OPEN(openat, at, int at) OPEN(openat64, at, int at)

static ssize_t do_write(int fd, const void *data, size_t n, off_t offset) {
  char path[PATH_MAX];
  if (!open_inside(fd, path)) return offset < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, offset);
  begin();
  struct stat now;
  off_t at = fstat(fd, &now) ? 0 : offset >= 0 ? offset : fcntl(fd, F_GETFL) & O_APPEND ? now.st_size : lseek(fd, 0, SEEK_CUR);
  int was_failing = failing;
  if (fails(at + (off_t)n > now.st_size)) {
    if (was_failing || !failing || n < 2) return end(-1);
    n /= 2; // what a full disk still takes
  }
  ssize_t done = offset < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, offset);
  if (done > 0) line('w', now.st_ino, at, 0, path, NULL, data, done);
  return end(done);
}
static ssize_t do_writev(int fd, const struct iovec *parts, int n, off_t offset) {
  size_t size = 0, at = 0;
  for (int i = 0; i < n; i++) size += parts[i].iov_len;
  char *whole = malloc(size + 1);
  for (int i = 0; i < n; at += parts[i++].iov_len) memcpy(whole + at, parts[i].iov_base, parts[i].iov_len);
  ssize_t done = do_write(fd, whole, size, offset);
  int error = errno;
  free(whole);
  errno = error;
  return done;
}
ssize_t write(int fd, const void *data, size_t n) { return do_write(fd, data, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) { return do_write(fd, data, n, offset); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset) { return do_write(fd, data, n, offset); }
ssize_t writev(int fd, const struct iovec *parts, int n) { return do_writev(fd, parts, n, -1); }
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t offset, int flags) { if (flags) refuse("a flag of pwritev2"); return do_writev(fd, parts, n, offset); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off_t offset, int flags) { return pwritev2(fd, parts, n, offset, flags); }

// Copies within the kernel are refused, and whoever wants one writes instead.
ssize_t sendfile(int to, int from, off_t *offset, size_t n) { char p[PATH_MAX]; if (open_inside(to, p)) { errno = EINVAL; return -1; } return syscall(SYS_sendfile, to, from, offset, n); }
ssize_t sendfile64(int to, int from, off_t *offset, size_t n) { return sendfile(to, from, offset, n); }
ssize_t copy_file_range(int from, off_t *a, int to, off_t *b, size_t n, unsigned flags) { char p[PATH_MAX]; if (open_inside(to, p)) { errno = EINVAL; return -1; } return syscall(SYS_copy_file_range, from, a, to, b, n, flags); }

static int of_open(char op, int fd, uint64_t a, uint64_t b, int needs_room, long number, long x, long y, long z) {
  char path[PATH_MAX];
  if (!open_inside(fd, path)) return syscall(number, fd, x, y, z);
  begin();
  if (fails(needs_room)) {
    if (number == SYS_fsync || number == SYS_fdatasync || number == SYS_syncfs) line('x', inode(fd), number == SYS_syncfs, 0, path, NULL, NULL, 0);
    return end(-1);
  }
  int result = syscall(number, fd, x, y, z);
  if (!result) line(op, inode(fd), a, b, path, NULL, NULL, 0);
  return end(result);
}
int fsync(int fd) { return of_open('S', fd, 0, 0, 0, SYS_fsync, 0, 0, 0); }
int fdatasync(int fd) { return of_open('s', fd, 0, 0, 0, SYS_fdatasync, 0, 0, 0); }
int syncfs(int fd) { return of_open('Y', fd, 0, 0, 0, SYS_syncfs, 0, 0, 0); }
int ftruncate(int fd, off_t n) { return of_open('t', fd, n, 0, 0, SYS_ftruncate, n, 0, 0); }
int ftruncate64(int fd, off_t n) { return ftruncate(fd, n); }
int fallocate(int fd, int mode, off_t offset, off_t n) {
  if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)) refuse("a mode of fallocate");
  char op = mode & FALLOC_FL_PUNCH_HOLE ? 'z' : mode ? 'k' : 'f';
  return of_open(op, fd, offset, n, op != 'z', SYS_fallocate, mode, offset, n);
}
int fallocate64(int fd, int mode, off_t offset, off_t n) { return fallocate(fd, mode, offset, n); }
int posix_fallocate(int fd, off_t offset, off_t n) { return fallocate(fd, 0, offset, n) ? errno : 0; }
int posix_fallocate64(int fd, off_t offset, off_t n) { return posix_fallocate(fd, offset, n); }

static int of_name(char op, int at, const char *path, long number, long extra) {
  char full[PATH_MAX];
  if (!named_inside(at, path, full)) return syscall(number, at, path, extra);
  begin();
  if (fails(op == 'm')) return end(-1);
  int result = syscall(number, at, path, extra);
  if (!result) line(op, 0, 0, 0, full, NULL, NULL, 0);
  return end(result);
}
int unlinkat(int at, const char *path, int flags) { return of_name(flags & AT_REMOVEDIR ? 'd' : 'u', at, path, SYS_unlinkat, flags); }
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) { int result = unlink(path); return result && errno == EISDIR ? rmdir(path) : result; }
int mkdirat(int at, const char *path, mode_t mode) { return of_name('m', at, path, SYS_mkdirat, mode); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int of_names(char op, int a, const char *path, int b, const char *to, int flags) {
  char from_path[PATH_MAX], to_path[PATH_MAX];
  long number = op == 'r' ? SYS_renameat2 : SYS_linkat;
  int from_inside = named_inside(a, path, from_path), to_inside = named_inside(b, to, to_path);
  if (!from_inside && !to_inside) return syscall(number, a, path, b, to, flags);
  if (!from_inside || !to_inside) refuse("a name from elsewhere");
  begin();
  if (fails(1)) return end(-1);
  int result = syscall(number, a, path, b, to, flags);
  if (!result) line(op, inode_of(to_path), 0, 0, from_path, to_path, NULL, 0);
  return end(result);
}
int renameat(int a, const char *path, int b, const char *to) { return of_names('r', a, path, b, to, 0); }
int rename(const char *path, const char *to) { return of_names('r', AT_FDCWD, path, AT_FDCWD, to, 0); }
int linkat(int a, const char *path, int b, const char *to, int flags) { return of_names('l', a, path, b, to, flags); }
int link(const char *path, const char *to) { return of_names('l', AT_FDCWD, path, AT_FDCWD, to, 0); }
