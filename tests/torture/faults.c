/* Lets the n-th call that changes a disk fail as on a full one, or cuts every write short. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static long left = -1, calls = 0; /* left < 0: nothing fails */
static int cut = 0, sticky = 0, full = 0;

void faults_arm(long n, int stay, int shorten) { left = n; calls = 0; sticky = stay; cut = shorten; full = 0; }
long faults_calls(void) { return calls; }
int faults_hit(void) { return full; }

static int fails(void) {
  if (left < 0) { ++calls; return 0; }
  ++calls;
  if (full && sticky) return 1;
  if (calls - 1 == left) { full = 1; return 1; }
  return 0;
}
static int on_disk(int fd) {
  struct stat s;
  return fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) {
  if (on_disk(fd)) {
    if (fails()) { errno = ENOSPC; return -1; }
    if (cut && n > 1) n = (n + 1) / 2;
  }
  return REAL(write)(fd, data, n);
}
int fsync(int fd) {
  if (fails()) { errno = ENOSPC; return -1; }
  return REAL(fsync)(fd);
}
int rename(const char *a, const char *b) {
  if (fails()) { errno = ENOSPC; return -1; }
  return REAL(rename)(a, b);
}
int renameat2(int d, const char *a, int e, const char *b, unsigned flags) {
  if (fails()) { errno = ENOSPC; return -1; }
  return REAL(renameat2)(d, a, e, b, flags);
}
int mkdir(const char *path, mode_t mode) {
  if (fails()) { errno = ENOSPC; return -1; }
  return REAL(mkdir)(path, mode);
}
int symlink(const char *a, const char *b) {
  if (fails()) { errno = ENOSPC; return -1; }
  return REAL(symlink)(a, b);
}
int open64(const char *path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
    if (fails()) { errno = ENOSPC; return -1; }
  }
  return REAL(open64)(path, flags, mode);
}
