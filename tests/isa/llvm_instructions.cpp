// What LLVM knows of instructions: for each line "HEX-BYTES" of the standard input one line of
//
//     SIZE OPCODE FLAGS TARGET WRITES READS
//
// or "-" where LLVM does not know the bytes.  FLAGS: letters, of "c"all, "r"eturn, "i"ndirect
// branch, "b" for a conditional and "j" for an unconditional branch, "p" for an operand relative to
// the program counter, or "-".  TARGET: the distance in bytes of a branch, or "-".  WRITES, READS:
// registers, separated by commas, or "-"; an operand that is both is in both.
//
// usage: llvm_instructions TRIPLE FEATURES (such as +m,+zacas)
#include "llvm/MC/MCAsmInfo.h"
#include "llvm/MC/MCContext.h"
#include "llvm/MC/MCDisassembler/MCDisassembler.h"
#include "llvm/MC/MCInst.h"
#include "llvm/MC/MCInstrAnalysis.h"
#include "llvm/MC/MCInstrInfo.h"
#include "llvm/MC/MCRegisterInfo.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/MCTargetOptions.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include <iostream>
#include <set>
#include <string>
#include <vector>

using namespace llvm;

static const uint64_t START = 1ull << 40;

static std::string joined(const std::set<std::string> &names)
{
    std::string text;
    for (const auto &name : names)
        text += (text.empty() ? "" : ",") + name;
    return text.empty() ? "-" : text;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    InitializeAllTargetInfos();
    InitializeAllTargetMCs();
    InitializeAllDisassemblers();
    std::string triple = arguments[1], error;
    const Target *target = TargetRegistry::lookupTarget(triple, error);
    if (!target)
        return 3;
    std::unique_ptr<MCRegisterInfo> registers(target->createMCRegInfo(triple));
    std::unique_ptr<MCAsmInfo> assembler(
        target->createMCAsmInfo(*registers, triple, MCTargetOptions()));
    std::unique_ptr<MCInstrInfo> instructions(target->createMCInstrInfo());
    std::unique_ptr<MCInstrAnalysis> analysis(target->createMCInstrAnalysis(instructions.get()));
    std::unique_ptr<MCSubtargetInfo> subtarget(
        target->createMCSubtargetInfo(triple, "", arguments[2]));
    MCContext context(Triple(triple), assembler.get(), registers.get(), subtarget.get());
    std::unique_ptr<MCDisassembler> disassembler(
        target->createMCDisassembler(*subtarget, context));
    std::string line, out;
    while (std::getline(std::cin, line)) {
        std::vector<uint8_t> bytes;
        for (size_t at = 0; at + 2 <= line.size(); at += 2)
            bytes.push_back(std::stoul(line.substr(at, 2), nullptr, 16));
        MCInst one;
        uint64_t size = 0;
        if (disassembler->getInstruction(one, size, bytes, START, nulls()) !=
            MCDisassembler::Success) {
            out += "-\n";
            continue;
        }
        const MCInstrDesc &facts = instructions->get(one.getOpcode());
        std::set<std::string> writes, reads;
        std::string flags;
        for (unsigned k = 0; k < one.getNumOperands(); k++) {
            const MCOperand &operand = one.getOperand(k);
            bool described = k < facts.getNumOperands();
            if (described && facts.operands()[k].OperandType == MCOI::OPERAND_PCREL &&
                flags.find('p') == std::string::npos)
                flags += 'p';
            if (!operand.isReg() || !operand.getReg())
                continue;
            (k < facts.getNumDefs() ? writes : reads).insert(registers->getName(operand.getReg()));
        }
        for (MCPhysReg one : facts.implicit_defs())
            writes.insert(registers->getName(one));
        for (MCPhysReg one : facts.implicit_uses())
            reads.insert(registers->getName(one));
        flags += analysis->isCall(one) ? "c" : "";
        flags += analysis->isReturn(one) ? "r" : "";
        flags += analysis->isIndirectBranch(one) ? "i" : "";
        flags += analysis->isConditionalBranch(one) ? "b" : "";
        flags += analysis->isUnconditionalBranch(one) ? "j" : "";
        uint64_t place = 0;
        bool direct = analysis->evaluateBranch(one, START, size, place);
        out += std::to_string(size) + " " + instructions->getName(one.getOpcode()).str() + " " +
               (flags.empty() ? "-" : flags) + " " +
               (direct ? std::to_string(int64_t(place - START)) : "-") + " " + joined(writes) +
               " " + joined(reads) + "\n";
    }
    std::cout << out;
    return 0;
}
