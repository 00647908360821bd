"""Table of the riscv64 encodings that kinst knows, with the general registers that each reads and
writes.

Operands do not always follow an opcode's usual format: amocas reads rd, a strided vector load has
its stride in rs2, mop.rr has operands in SYSTEM.  So each encoding is listed by all of its fixed
bits. A word that matches no row of the table is unknown: it is refused (refuse.py), may lead
anywhere (control.py), and reads all registers and writes none (liveness.py).

A row gives the 32 or 16 bits of an encoding from the highest to the lowest, in fields: binary
digits; `-N` for N bits that are no general register (a number, a floating-point or vector register,
a rounding mode); and general registers:

    d s t       5 bits: written (rd), read (rs1), read (rs2)
    b           5 bits: read and written
    T B         5 bits: the even register of a pair; the pair is read (T), or read and written (B)
    d' s' t' b' 3 bits: a register from x8 to x15; letters as above
    s:0---1     5 bits: letters as above, but only register numbers of this pattern
    +sN +dN     no bits: every word of the encoding reads xN (s), or writes xN (d)

A field with `!` is not zero.  Alternatives for a field are separated by `|`.  Text after `#` names
the instructions.

Sources: RISC-V unprivileged specification, "RV32/64G Instruction Set Listings", "RVC Instruction Set
Listings", and the chapters of Zacas, Zabha, Zalasr, Zawrs, Zicond, Zimop, Zcmop, Zcb, Zfa, Zfh,
Zfbfmin, B, V, Zvbb, Zvbc, Zvfbfmin, Zvfbfwma, scalar and vector cryptography, CMOs and CFI (Zicfiss,
Zicfilp); privileged specification, "RISC-V Privileged Instruction Set Listings", Svinval, Smctr,
Smrnmi; debug specification (dret).
"""  # noqa: E501

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from kinst.core.dataclass import dataclass

_FULL = """
# RV64I
-20 d 0110111|0010111                                     # lui auipc
-20 d 1101111                                             # jal
-12 s 000 d 1100111                                       # jalr
-7 t s 000|001|100|101|110|111 -5 1100011                 # branches
-12 s 000|001|010|011|100|101|110 d 0000011               # loads
-7 t s 000|001|010|011 -5 0100011                         # stores
-12 s 000|010|011|100|110|111 d 0010011                   # addi slti sltiu xori ori andi; prefetch
000000|010010|001010|011010 -6 s 001 d 0010011            # slli bclri bseti binvi
000000|010000|010010|011000 -6 s 101 d 0010011            # srli srai bexti rori
-12 s 000 d 0011011                                       # addiw
0000000|0110000 -5 s 101 d 0011011                        # srliw roriw
0100000 -5 s 101 d 0011011                                # sraiw
0000000 -5 s 001 d 0011011                                # slliw
000010 -6 s 001 d 0011011                                 # slli.uw
0000000 t s -3 d 0110011                                  # add sll slt sltu xor srl or and
0100000 t s 000|101|100|110|111 d 0110011                 # sub sra xnor orn andn
0000000 t s 000|001|101 d 0111011                         # addw sllw srlw
0100000 t s 000|101 d 0111011                             # subw sraw
0000 -8 00000 000 00000 0001111                           # fence
1000 0011 0011 00000 000 00000 0001111                    # fence.tso
000000000000 00000 001 00000 0001111                      # fence.i
000000000000|000000000001 00000 000 00000 1110011         # ecall ebreak
-12 s 001|010|011 d 1110011                               # csrrw csrrs csrrc
-12 -5 101|110|111 d 1110011                              # csrrwi csrrsi csrrci
# M
0000001 t s -3 d 0110011                                  # mul div rem
0000001 t s 000|100|101|110|111 d 0111011                 # mulw divw remw
# A, Zabha, Zacas, Zalasr, Zicfiss
00010 -2 00000 s 010|011 d 0101111                        # lr
00011 -2 t s 010|011 d 0101111                            # sc
00000|00001|00100|01100|01000|10000|10100|11000|11100 -2 t s 000|001|010|011 d 0101111  # amo*
00101 -2 t s 000|001|010|011 b 0101111                    # amocas.b .h .w .d
00101 -2 T s 100 B 0101111                                # amocas.q
01001 -2 t s 010|011 d 0101111                            # ssamoswap
00110 1 -1 00000 s 000|001|010|011 d 0101111              # l*.aq
00111 -1 1 t s 000|001|010|011 00000 0101111              # s*.rl
# Zba, Zbb, Zbc, Zbs, Zbkb, Zbkx, Zicond
0010000 t s 010|100|110 d 0110011|0111011                 # sh1add sh2add sh3add, .uw
0000100 t s 000 d 0111011                                 # add.uw
0000101 t s 001|010|011|100|101|110|111 d 0110011         # clmul* min max
0000111 t s 101|111 d 0110011                             # czero.eqz czero.nez
0010100 t s 001|010|100 d 0110011                         # bset xperm4 xperm8
0100100 t s 001|101 d 0110011                             # bclr bext
0110100 t s 001 d 0110011                                 # binv
0110000 t s 001|101 d 0110011|0111011                     # rol ror, w
0000100 t s 100|111 d 0110011                             # pack packh
0000100 t s 100 d 0111011                                 # packw, zext.h
# clz ctz cpop sext
011000000000|011000000001|011000000010|011000000100|011000000101 s 001 d 0010011
011000000000|011000000001|011000000010 s 001 d 0011011    # clzw ctzw cpopw
001010000111|011010111000|011010000111 s 101 d 0010011    # orc.b rev8 brev8
# Zkn, Zks
# aes64es aes64esm aes64ds aes64dsm aes64ks2
0011001|0011011|0011101|0011111|0111111 t s 000 d 0110011
-2 11000|11010 t s 000 d 0110011                          # sm4ed sm4ks
001100000000 s 001 d 0010011                              # aes64im
001100010 -3 s 001 d 0010011                              # aes64ks1i, rounds 0 to 7
001100011000|001100011001|001100011010 s 001 d 0010011    # rounds 8 to 10
000100000 -3 s 001 d 0010011                              # sha256*, sha512*
000100001000|000100001001 s 001 d 0010011                 # sm3p0 sm3p1
# F, D, Q, Zfh, Zfa, Zfbfmin
-12 s 001|010|011|100 -5 0000111                          # flh flw fld flq
-7 -5 s 001|010|011|100 -5 0100111                        # fsh fsw fsd fsq
-17 000|001|010|011|100|111 -5 1000011|1000111|1001011|1001111  # fmadd fmsub fnmsub fnmadd
00000|00001|00010|00011 -2 -10 000|001|010|011|100|111 -5 1010011  # fadd fsub fmul fdiv
01011 -2 00000 -5 000|001|010|011|100|111 -5 1010011      # fsqrt
00100 -2 -10 000|001|010 -5 1010011                       # fsgnj
00101 -2 -10 000|001|010|011 -5 1010011                   # fmin fmax fminm fmaxm
01000 00 00001|00010|00011|00100|00101|00110 -5 000|001|010|011|100|111 -5 1010011  # to single
01000 01 00000|00010|00011|00100|00101 -5 000|001|010|011|100|111 -5 1010011  # to double
01000 10 00000|00001|00011|00100|00101|01000 -5 000|001|010|011|100|111 -5 1010011  # to half
01000 11 00000|00001|00010|00100|00101 -5 000|001|010|011|100|111 -5 1010011  # to quad
10100 -2 -10 000|001|010|100|101 d 1010011                # fle flt feq fleq fltq
11000 -2 00000|00001|00010|00011 -5 000|001|010|011|100|111 d 1010011  # fcvt to integers
11000 01 01000 -5 001 d 1010011                           # fcvtmod.w.d
11010 -2 00000|00001|00010|00011 s 000|001|010|011|100|111 -5 1010011  # fcvt from integers
11100 00|01|10 00000 -5 000 d 1010011                     # fmv.x
11100 11 00001 -5 000 d 1010011                           # fmvh.x.q
11100 -2 00000 -5 001 d 1010011                           # fclass
11110 00|01|10 00000 s 000 -5 1010011                     # fmv from x
10110 11 t s 000 -5 1010011                               # fmvp.q.x
11110 -2 00001 -5 000 -5 1010011                          # fli
# Zicbom, Zicboz, Zawrs, Zimop; privileged; H, Svinval
000000000000|000000000001|000000000010|000000000100 s 010 00000 0001111  # cbo.*
000000001101|000000011101 00000 000 00000 1110011         # wrs.nto wrs.sto
1 -1 00 -2 0111 -2 s 100 d 1110011                        # mop.r; sspopchk ssrdp
1 -1 00 -2 1 t s 100 d 1110011                            # mop.rr; sspush
000100000010|001100000010|011100000010|011110110010 00000 000 00000 1110011  # sret mret mnret dret
000100000101|000100000100 00000 000 00000 1110011         # wfi sctrclr
0001001|0001011|0010001|0110001|0010011|0110011 t s 000 00000 1110011  # sfence sinval hfence hinval
000110000000|000110000001 00000 000 00000 1110011         # sfence.w.inval sfence.inval.ir
0110000 00000|00001 s 100 d 1110011                       # hlv.b hlv.bu
0110010 00000|00001|00011 s 100 d 1110011                 # hlv.h hlv.hu hlvx.hu
0110100 00000|00001|00011 s 100 d 1110011                 # hlv.w hlv.wu hlvx.wu
0110110 00000 s 100 d 1110011                             # hlv.d
0110001|0110011|0110101|0110111 t s 100 00000 1110011     # hsv
# V: loads and stores; their registers are vectors but the base and the stride
-3 000 -1 00000|10000 s 000|101|110|111 -5 0000111        # vle, vleff
-3 000 -1 00000 s 000|101|110|111 -5 0100111              # vse
000 000 1 01011 s 000 -5 0000111|0100111                  # vlm vsm
000|001|011|111 000 1 01000 s 000|101|110|111 -5 0000111  # vl1re to vl8re
000|001|011|111 000 1 01000 s 000 -5 0100111              # vs1r to vs8r
-3 0 10 -1 t s 000|101|110|111 -5 0000111|0100111         # vlse vsse
-3 0 01|11 -1 -5 s 000|101|110|111 -5 0000111|0100111     # indexed
0 -11 s 111 d 1010111                                     # vsetvli
11 -10 -5 111 d 1010111                                   # vsetivli
1000000 t s 111 d 1010111                                 # vsetvl
# V: vector and vector, integers: funct6 vm vs2 vs1 funct3 vd
# vadd vandn vsub vand vor vxor vrgather
000000|000001|000010|001001|001010|001011|001100|001110 -11 000 -5 1010111
0001 -2 -11 000 -5 1010111                                # vmin vmax
010000|010010|010111 0 -10 000 -5 1010111                 # vadc vsbc vmerge
010001|010011 -11 000 -5 1010111                          # vmadc vmsbc
010111 1 00000 -5 000 -5 1010111                          # vmv.v.v
# vror vrol vmseq to vmsle
010100|010101|011000|011001|011010|011011|011100|011101 -11 000 -5 1010111
1000 -2 -11 000 -5 1010111                                # vsadd vssub
100101|100111|110000|110001|110101 -11 000 -5 1010111     # vsll vsmul vwredsum vwsll
101 -14 000 -5 1010111                                    # vsrl vsra vssr vnsr vnclip
# vector and general register, integers
# vadd to vslidedown
000000|000001|000010|000011|001001|001010|001011|001100|001110|001111 -6 s 100 -5 1010111
0001 -8 s 100 -5 1010111                                  # vmin vmax
010000|010010|010111 0 -5 s 100 -5 1010111                # vadc vsbc vmerge
010001|010011|010100|010101 -6 s 100 -5 1010111           # vmadc vmsbc vror vrol
010111 1 00000 s 100 -5 1010111                           # vmv.v.x
011 -9 s 100 -5 1010111                                   # vmseq to vmsgt
1000 -8 s 100 -5 1010111                                  # vsadd vssub
100101|100111|110101 -6 s 100 -5 1010111                  # vsll vsmul vwsll
101 -9 s 100 -5 1010111                                   # vsrl vsra vssr vnsr vnclip
# vector and number
000000|000011|001001|001010|001011|001100|001110|001111 -11 011 -5 1010111  # vadd to vslidedown
010000|010111 0 -10 011 -5 1010111                        # vadc vmerge
010001|010100|010101|011000|011001 -11 011 -5 1010111     # vmadc vror vmseq vmsne
010111 1 00000 -5 011 -5 1010111                          # vmv.v.i
0111 -13 011 -5 1010111                                   # vmsleu to vmsgt
100000|100001|100101|110101 -11 011 -5 1010111            # vsaddu vsadd vsll vwsll
100111 1 -5 00000|00001|00011|00111 011 -5 1010111        # vmv1r to vmv8r
101 -14 011 -5 1010111                                    # vsrl vsra vssr vnsr vnclip
# vector and vector, multiplication, division, masks
000 -14 010 -5 1010111                                    # vredsum to vredmax
0010 -13 010 -5 1010111                                   # vaadd vasub
001100|001101 -11 010 -5 1010111                          # vclmul vclmulh
010000 1 -5 00000 010 d 1010111                           # vmv.x.s
010000 -6 10000|10001 010 d 1010111                       # vcpop.m vfirst.m
010010 -6 00010|00011|00100|00101|00110|00111 010 -5 1010111  # vzext vsext
010010 -6 01000|01001|01010|01100|01101|01110 010 -5 1010111  # vbrev8 vrev8 vbrev vclz vctz vcpop.v
010100 -6 00001|00010|00011|10000 010 -5 1010111          # vmsbf vmsof vmsif viota
010100 -1 00000 10001 010 -5 1010111                      # vid
010111 1 -10 010 -5 1010111                               # vcompress
011 -3 1 -10 010 -5 1010111                               # vmand to vmxnor
100 -14 010 -5 1010111                                    # vdiv vrem vmul
101001|101011|101101|101111 -11 010 -5 1010111            # vmadd vnmsub vmacc vnmsac
110 -14 010 -5 1010111                                    # vwadd vwsub
111000|111010|111011|111100|111101|111111 -11 010 -5 1010111  # vwmul vwmacc
# vector and general register, multiplication, division
0010 -8 s 110 -5 1010111                                  # vaadd vasub
001100|001101|001110|001111 -6 s 110 -5 1010111           # vclmul vclmulh vslide1up vslide1down
010000 1 00000 s 110 -5 1010111                           # vmv.s.x
100 -9 s 110 -5 1010111                                   # vdiv vrem vmul
101001|101011|101101|101111 -6 s 110 -5 1010111           # vmadd vnmsub vmacc vnmsac
110 -9 s 110 -5 1010111                                   # vwadd vwsub
111000|111010|111011|111100|111101|111110|111111 -6 s 110 -5 1010111  # vwmul vwmacc
# vector and vector, floating point
000 -14 001 -5 1010111                                    # vfadd to vfredmax
001000|001001|001010 -11 001 -5 1010111                   # vfsgnj
010000 1 -5 00000 001 -5 1010111                          # vfmv.f.s
010010 -6 00000|00001|00010|00011|00110|00111 001 -5 1010111  # vfcvt
010010 -6 01000|01001|01010|01011|01100|01101|01110|01111 001 -5 1010111  # vfwcvt
010010 -6 10000|10001|10010|10011|10100|10101|10110|10111|11101 001 -5 1010111  # vfncvt
010011 -6 00000|00100|00101|10000 001 -5 1010111          # vfsqrt vfrsqrt7 vfrec7 vfclass
011000|011001|011011|011100 -11 001 -5 1010111            # vmfeq vmfle vmflt vmfne
100000|100100 -11 001 -5 1010111                          # vfdiv vfmul
101 -14 001 -5 1010111                                    # vfmadd to vfnmsac
110000|110001|110010|110011|110100|110110 -11 001 -5 1010111  # vfwadd vfwredusum vfwsub vfwredosum
111000|111011|111100|111101|111110|111111 -11 001 -5 1010111  # vfwmul vfwmaccbf16 vfwmacc
# vector and floating-point register
# vfadd to vfslide1down
000000|000010|000100|000110|001000|001001|001010|001110|001111 -11 101 -5 1010111
010000 1 00000 -5 101 -5 1010111                          # vfmv.s.f
010111 0 -10 101 -5 1010111                               # vfmerge
010111 1 00000 -5 101 -5 1010111                          # vfmv.v.f
011000|011001|011011|011100|011101|011111 -11 101 -5 1010111  # vmfeq to vmfge
100000|100001|100100|100111 -11 101 -5 1010111            # vfdiv vfrdiv vfmul vfrsub
101 -14 101 -5 1010111                                    # vfmadd to vfnmsac
110000|110010|110100|110110|111000|111011 -11 101 -5 1010111  # vfwadd vfwsub vfwmul vfwmaccbf16
1111 -13 101 -5 1010111                                   # vfwmacc
# vector cryptography
101000|101001 1 -5 00000|00001|00010|00011|10000 010 -5 1110111  # vaesdm vaesdf vaesem vaesef vsm4r
101000 1 -5 10001 010 -5 1110111                          # vgmul
101001 1 -5 00111 010 -5 1110111                          # vaesz
100000|100001|100010|101010|101011 1 -10 010 -5 1110111   # vsm3me vsm4k vaeskf1 vaeskf2 vsm3c
101100|101101|101110|101111 1 -10 010 -5 1110111          # vghsh vsha2ms vsha2ch vsha2cl
"""

_COMPRESSED = """
000 0000000000000                                         # c.unimp, which is all zeros
000 -8! d' 00 +s2                                         # c.addi4spn
001|101 -3 s' -2 -3 00                                    # c.fld c.fsd
010|011 -3 s' -2 d' 00                                    # c.lw c.ld
110|111 -3 s' -2 t' 00                                    # c.sw c.sd
100 000|001 s' -2 d' 00                                   # c.lbu c.lhu c.lh
100 010 s' -2 t' 00                                       # c.sb
100 011 s' 0 -1 t' 00                                     # c.sh
000 -1 b -5 01                                            # c.addi c.nop
001 -1 b! -5 01                                           # c.addiw
010 -1 d -5 01                                            # c.li
011 1 b:00010 -5 01                                       # c.addi16sp
011 0 b:00010 -5! 01
011 1 d -5 01                                             # c.lui
011 0 d -5! 01
011 0 s:0---1 00000 01                                    # c.mop; c.sspush, c.sspopchk
100 -1 00|01|10 b' -5 01                                  # c.srli c.srai c.andi
100 0 11 b' -2 t' 01                                      # c.sub c.xor c.or c.and
100 1 11 b' 00|01|10 t' 01                                # c.subw c.addw c.mul
100 1 11 b' 11 000|001|010|011|100|101 01                 # c.zext c.sext c.not
101 -11 01                                                # c.j
110|111 -3 s' -5 01                                       # c.beqz c.bnez
000 -1 b -5 10                                            # c.slli
001|101 -11 10 +s2                                        # c.fldsp c.fsdsp
010|011 -1 d! -5 10 +s2                                   # c.lwsp c.ldsp
110|111 -6 t 10 +s2                                       # c.swsp c.sdsp
100 0 s! 00000 10                                         # c.jr
100 1 s! 00000 10 +d1                                     # c.jalr
100 1 00000 00000 10                                      # c.ebreak
100 0 d t! 10                                             # c.mv
100 1 b t! 10                                             # c.add
"""

ALL = (1 << 32) - 2  # mask of every general register but x0

_READ, _WRITTEN = "stbTB", "dbB"
_FIELD = re.compile(r"([dstbTB])('?)(?::([01-]+))?(!?)")


@dataclass(frozen=True, slots=True)
class _Operand:
    """A field of an encoding that names a general register.

    Attributes:
        letter: the field's letter in the table (d, s, t, b, T or B).
        shift: lowest bit of the field.
        size: bits of the field, 3 or 5.
    """

    letter: str
    shift: int
    size: int

    def registers(self, word: int) -> int:
        """Return a mask of the registers that this field names in an instruction word: one
        register, or a pair."""
        number = word >> self.shift & (1 << self.size) - 1
        if self.size == 3:
            number += 8
        if self.letter not in "TB":
            return 1 << number & ALL
        # x0 means a pair of zeros.
        return 3 << number if number else 0


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding, and the registers that its words read and write.

    Attributes:
        mask: the fixed bits of the encoding.
        match: values of the fixed bits; a word has this encoding if word & mask == match.
        operands: fields that name registers.
        reads: mask of registers that every word of the encoding reads.
        writes: mask of registers that every word of the encoding writes.
    """

    mask: int
    match: int
    operands: tuple[_Operand, ...]
    reads: int
    writes: int

    def effect(self, word: int) -> tuple[int, int]:
        """Return (mask of registers read, mask of registers written) for a word of this
        encoding."""
        reads, writes = self.reads, self.writes
        for operand in self.operands:
            registers = operand.registers(word)
            reads |= registers if operand.letter in _READ else 0
            writes |= registers if operand.letter in _WRITTEN else 0
        return reads, writes


@lru_cache(maxsize=1 << 16)
def find(word: int, size: int) -> Encoding | None:
    """Return the encoding of an instruction word; None if it is unknown.

    Args:
        size: 2 or 4, the bytes of the word.
    """
    table = _compressed() if size == 2 else _full()
    group = word & 0xE003 if size == 2 else word & 0x7F
    return next(
        (encoding for encoding in table.get(group, ()) if word & encoding.mask == encoding.match),
        None,
    )


def effect(word: int, size: int) -> tuple[int, int]:
    """Return (mask of registers read, mask of registers written) for an instruction word. An
    unknown word counts as reading all registers and writing none.

    Args:
        size: 2 or 4, the bytes of the word.
    """
    encoding = find(word, size)
    return encoding.effect(word) if encoding else (ALL, 0)


@cache
def _full() -> dict[int, list[Encoding]]:
    """Return the encodings of 32 bits, by their major opcode."""
    return _grouped(_FULL, 32, 0x7F)


@cache
def _compressed() -> dict[int, list[Encoding]]:
    """Return the encodings of 16 bits, by quadrant and funct3 (the bits 0xE003)."""
    return _grouped(_COMPRESSED, 16, 0xE003)


def _grouped(table: str, width: int, group: int) -> dict[int, list[Encoding]]:
    groups: dict[int, list[Encoding]] = {}
    for line in table.splitlines():
        fields = line.partition("#")[0].split()
        for encoding in _row(fields, width) if fields else ():
            groups.setdefault(encoding.match & group, []).append(encoding)
    return groups


def _row(tokens: Sequence[str], width: int) -> Iterator[Encoding]:
    """Yield the encodings of one row of the table: one for each combination of the fields'
    alternatives.

    Args:
        tokens: the row's fields.
        width: bits of the encoding, 16 or 32.
    """
    implied = [token[1:] for token in tokens if token[0] == "+"]
    reads = sum(1 << int(register[1:]) for register in implied if register[0] == "s")
    writes = sum(1 << int(register[1:]) for register in implied if register[0] == "d")
    fields = [token for token in tokens if token[0] != "+"]
    for patterns in itertools.product(*map(_patterns, fields)):
        bits = "".join(patterns)
        assert len(bits) == width, f"{' '.join(fields)} has {len(bits)} bits"
        operands, end = [], width
        for field, pattern in zip(fields, patterns, strict=True):
            end -= len(pattern)
            if field[0].isalpha():
                operands.append(_Operand(field[0], end, len(pattern)))
        yield Encoding(
            int(bits.replace("0", "1").replace("-", "0"), 2), int(bits.replace("-", "0"), 2),
            tuple(operands), reads, writes,
        )  # fmt: skip


def _patterns(field: str) -> list[str]:
    """Return the alternatives of a field as patterns: binary digits, with `-` for a bit that may be
    0 or 1."""
    if named := _FIELD.fullmatch(field):
        letter, short, given, set_ = named.groups()
        pattern = given or "-" * (3 if short else 5)
        if letter in "TB":
            pattern = "----0"
        return _not_zero(len(pattern)) if set_ else [pattern]
    if field[0] == "-":
        size = int(field[1:].rstrip("!"))
        return _not_zero(size) if field[-1] == "!" else ["-" * size]
    return field.split("|")


def _not_zero(size: int) -> list[str]:
    """Return patterns that together match all numbers of `size` bits except 0."""
    return ["0" * k + "1" + "-" * (size - k - 1) for k in range(size)]
