/* Runs net.c once on the input in input.h and prints the bits of the outputs and the ticks that the run took, on Arm
   Cortex-M or RISC-V, through semihosting. */
#include <stdint.h>
#include "input.h"
#include "net.h"

#if defined(__riscv)
enum { TICKS = 0x7fffffff };
#else
enum { TICKS = 0xffffff };
#endif
static float arena[NET_ARENA_BYTES / sizeof(float)], out[NET_OUTPUTS];
extern uint32_t first, last;

#if defined(__riscv)
static void host(int operation, const void *argument)
{
    register int a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(".option push\n .option norvc\n .balign 16\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n"
                     ".option pop" : "+r"(a0) : "r"(a1) : "memory");
}

static void start(void)
{
    __asm__ volatile("csrs mstatus, %0" : : "r"(1u << 13)); /* the floating-point unit on */
}

static uint32_t ticks(void) /* instructions */
{
    uint32_t count;
    __asm__ volatile("csrr %0, minstret" : "=r"(count));
    return count;
}
#else
static void host(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static volatile uint32_t *const tick = (volatile uint32_t *)0xe000e010; /* counts down, 25 MHz */

static void start(void)
{
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* the floating-point unit on */
    __asm__ volatile("dsb\n isb");
#endif
    tick[1] = 0xffffff, tick[2] = 0, tick[0] = 5;
}

static uint32_t ticks(void)
{
    return 0xffffff - tick[2];
}
#endif

static void print(uint32_t value)
{
    char text[10];
    for (int i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[value >> (28 - 4 * i) & 15u];
    text[8] = '\n', text[9] = 0;
    host(0x04, text);
}

__attribute__((used)) static void reset(void)
{
    for (uint32_t *p = &first; p < &last; p++)
        *p = 0;
    start();
    const uint32_t before = ticks();
    const int failed = net_run(arena, input, out);
    const uint32_t taken = (ticks() - before) & TICKS;
    for (int i = 0; i < NET_OUTPUTS; i++) {
        union { float f; uint32_t u; } bits = {out[i]};
        print(bits.u);
    }
    print(taken);
    host(0x18, (void *)(failed ? 0x20023 : 0x20026));
    for (;;)
        ;
}

#if defined(__riscv)
__asm__(".section .vectors, \"ax\"\n .globl entry\n entry:\n li sp, 0x80800000\n j reset\n");
#else
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {(void *)0x20400000, (void *)reset};
#endif
